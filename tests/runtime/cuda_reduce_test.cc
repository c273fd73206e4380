#include "sherd/runtime/kernels/reduce.h"

#include "sherd/runtime/kernels/max_over.h"
#include "sherd/runtime/kernels/sum_over.h"
#include "tests/runtime/cuda_support.h"

namespace sherd::kernels::test {
namespace {

constexpr View kInputs[] = {View::kContiguous,    View::kOffset,     View::kPadded,
                            View::kOddPadded,     View::kTransposed, View::kRepeatedRow,
                            View::kRepeatedColumn};

double At(const Tensor& x, int64_t i) { return Peek(x, Place(x, i)); }

TEST(CudaReduceTest, SumsInDouble) {
  for (DType dtype : kFloats) {
    for (const Shape& shape :
         {Shape{0, 3}, Shape{1, 1}, Shape{3, 7}, Shape{5, 1031}, Shape{40, 520}}) {
      for (View view : kInputs) {
        if (shape.numel() == 0 && view != View::kContiguous) continue;
        const Pair x = LaidPair(view, dtype, shape, 1);
        long double sum = 0, magnitudes = 0, squares = 0;  // so that this one is exact
        double most = 0.0;
        for (int64_t i = 0; i < x.cpu.numel(); ++i) {
          const double value = At(x.cpu, i);
          sum += value;
          magnitudes += std::abs(value);
          squares += static_cast<long double>(value) * value;
          most = std::max(most, std::abs(value));
        }
        const std::string what = Describe(dtype, Write::kOverwrite, shape) + NameOf(view);
        EXPECT_LE(std::abs(Sum(x.gpu) - sum), 1e-15L * magnitudes) << what;
        EXPECT_LE(std::abs(SumAbs(x.gpu) - magnitudes), 1e-15L * magnitudes) << what;
        EXPECT_LE(std::abs(SumSquares(x.gpu) - squares), 1e-15L * squares) << what;
        EXPECT_EQ(MaxAbs(x.gpu), most) << what;
      }
    }
  }
}

TEST(CudaReduceTest, BitsOfASumDoNotDependOnWhereItsElementsLie) {
  for (DType dtype : kFloats) {
    const Pair x = LaidPair(View::kContiguous, dtype, {3, 7001}, 1);
    const Pair elsewhere = LaidPair(View::kOddPadded, dtype, {3, 7001}, 2);
    const Pair offset = LaidPair(View::kOffset, dtype, {3, 7001}, 2);
    Copy(x.gpu, elsewhere.gpu);
    Copy(x.gpu, offset.gpu);
    EXPECT_EQ(Sum(x.gpu), Sum(elsewhere.gpu));
    EXPECT_EQ(Sum(x.gpu), Sum(offset.gpu));
    EXPECT_EQ(Sum(x.gpu), Sum(x.gpu));
  }
}

TEST(CudaReduceTest, NanAndInfinityPropagate) {
  const double inf = std::numeric_limits<double>::infinity();
  for (DType dtype : kFloats) {
    for (int64_t at : {0, 8, 3000, 5000}) {
      const Tensor x = Random(dtype, {5001}, 1);
      Poke(x, at, -inf);
      EXPECT_EQ(Sum(PairOf(x).gpu), -inf);
      EXPECT_EQ(MaxAbs(PairOf(x).gpu), inf);
      Poke(x, at, std::nan(""));
      EXPECT_TRUE(std::isnan(Sum(PairOf(x).gpu)));
      EXPECT_TRUE(std::isnan(MaxAbs(PairOf(x).gpu)));
    }
  }
}

TEST(CudaReduceTest, WaitsForTheDeviceOnce) {
  const Pair x = LaidPair(View::kContiguous, DType::kBF16, {70000}, 1);
  Sum(x.gpu);
  emulated::ResetStatistics();
  Sum(x.gpu);
  EXPECT_EQ(emulated::ReadStatistics().synchronisations, 1);
  EXPECT_EQ(emulated::ReadStatistics().launches, 2);
  EXPECT_EQ(emulated::ReadStatistics().allocations, 0);
}

// Each has the bits of its own reduction, whatever stands beside it, and one wait is enough for
// all.
TEST(CudaReduceTest, ReducesSeveralTensorsWithOneWait) {
  std::vector<Tensor> xs;
  for (const Shape& shape : {Shape{70000}, Shape{3}, Shape{0}, Shape{1}, Shape{40, 520}}) {
    xs.push_back(PairOf(Random(DType::kBF16, shape, xs.size() + 1)).gpu);
  }
  for (const auto& [what, one] :
       {std::pair(Reduction::kSum, &Sum), std::pair(Reduction::kSumAbs, &SumAbs),
        std::pair(Reduction::kSumSquares, &SumSquares), std::pair(Reduction::kMaxAbs, &MaxAbs)}) {
    std::vector<double> want, got(xs.size(), -1.0);
    for (const Tensor& x : xs) want.push_back(one(x));
    emulated::ResetStatistics();
    ReduceEach(what, xs, got);
    EXPECT_EQ(emulated::ReadStatistics().synchronisations, 1);
    EXPECT_EQ(got, want);
  }
  // With tensors on the host between them.
  xs.insert(xs.begin() + 2, Random(DType::kBF16, {50}, 9));
  std::vector<double> got(xs.size());
  ReduceEach(Reduction::kSumAbs, xs, got);
  for (size_t i = 0; i < xs.size(); ++i) EXPECT_EQ(got[i], SumAbs(xs[i])) << i;
  std::vector<double> none(1, -1.0);
  ReduceEach(Reduction::kSum, std::span(&xs[3], 1), none);
  EXPECT_EQ(none[0], 0.0);
}

// Plain loops: the element of the output that each element of x belongs to.
std::vector<double> SumsOf(const Tensor& x, const Shape& sums, double scale) {
  std::vector<double> want(static_cast<size_t>(sums.numel()), 0.0);
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t rest = i, to = 0, step = 1;
    for (int d = x.rank() - 1; d >= 0; --d) {
      const int64_t index = rest % x.dim(d);
      rest /= x.dim(d);
      to += (sums[d] == 1 ? 0 : index) * step;
      step *= sums[d];
    }
    want[static_cast<size_t>(to)] += At(x, i);
  }
  for (double& value : want) value *= scale;
  return want;
}

void CheckSumOver(const Shape& shape, const Shape& sums, View view, DType from, DType to,
                  double scale, Write write) {
  const Pair x = LaidPair(view, from, shape, 1);
  for (View out_view : {View::kContiguous, View::kOddPadded}) {
    const Pair out = LaidPair(out_view, to, sums, 2);
    const std::vector<double> want = SumsOf(x.cpu, sums, scale);
    for (int64_t i = 0; i < out.cpu.numel(); ++i) {
      const int64_t place = Place(out.cpu, i);
      const double value = want[static_cast<size_t>(i)];
      Poke(out.cpu, place, write == Write::kAdd ? Peek(out.cpu, place) + value : value);
    }
    SumOver(x.gpu, out.gpu, scale, write);
    const double rounding = to == DType::kF64   ? 1e-13
                            : to == DType::kF32 ? 1.2e-7
                            : to == DType::kF16 ? 1.0 / 1024
                                                : 1.0 / 128;
    ExpectSame(out,
               "sum over " + Describe(from, write, shape) + " to " + sums.ToString() + NameOf(view),
               rounding);
  }
}

TEST(CudaSumOverTest, AnyDimensionsOfAnyStrides) {
  struct Case {
    Shape x, sums;
  };
  const Case cases[] = {{{5, 7}, {1, 7}},
                        {{5, 7}, {5, 1}},
                        {{5, 7}, {1, 1}},
                        {{200, 24}, {1, 24}},
                        {{300, 264}, {1, 264}},
                        {{3, 5, 16}, {3, 1, 16}},
                        {{3, 5, 16}, {1, 5, 1}},
                        {{4, 3, 2, 8}, {1, 3, 1, 8}},
                        {{4, 3, 2, 8}, {4, 1, 2, 1}},
                        {{2, 4000}, {2, 1}}};
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      for (const Case& c : cases) {
        for (View view : kInputs) {
          CheckSumOver(c.x, c.sums, view, dtype, dtype, 1.0, write);
        }
        CheckSumOver(c.x, c.sums, View::kContiguous, dtype, DType::kF32, 0.25, write);
        CheckSumOver(c.x, c.x, View::kPadded, dtype, DType::kF32, 0.25, write);
        CheckSumOver(c.x, c.x, View::kPadded, dtype, dtype, 1.0, write);
      }
    }
  }
}

TEST(CudaSumOverTest, SumsOfManyPartialSums) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    CheckSumOver({3, 30011}, {1, 1}, View::kContiguous, dtype, DType::kF64, 1.0, Write::kAdd);
    CheckSumOver({3000, 17}, {1, 17}, View::kContiguous, dtype, DType::kF64, 0.5, Write::kAdd);
  }
}

TEST(CudaSumOverTest, TheSumOfNothingIsZero) {
  const Pair none = LaidPair(View::kContiguous, DType::kF32, {0, 3}, 1);
  const Pair out = LaidPair(View::kContiguous, DType::kF32, {1, 3}, 2);
  SumOver(none.gpu, out.gpu, 1.0, Write::kAdd);
  ExpectSame(out, "nothing added");
  SumOver(none.gpu, out.gpu);
  EXPECT_EQ(out.gpu.ToHost<float>(), std::vector<float>(3, 0.0f));
}

TEST(CudaMaxOverTest, TheFirstOfEqualOnesAndNanAboveAll) {
  for (DType dtype : kFloats) {
    for (const Shape& shape : {Shape{1, 1}, Shape{5, 7}, Shape{3, 70, 33}, Shape{2, 100, 5}}) {
      for (View view : {View::kContiguous, View::kOddPadded, View::kTransposed}) {
        const Tensor x = Laid(view, dtype, shape, 1);
        for (int64_t i = 0; i < x.numel(); ++i) {  // small integers: many are equal
          Poke(x, Place(x, i), std::round(Peek(x, Place(x, i))));
          if (i % 97 == 13) Poke(x, Place(x, i), std::nan(""));
          if (i % 41 == 5) Poke(x, Place(x, i), -0.0);
        }
        const Pair both = PairOf(x);
        for (int dim = 0; dim < shape.rank(); ++dim) {
          const int64_t lines = x.numel() / x.dim(dim);
          const Pair values = PairOf(Random(dtype, {lines}, 2));
          const Pair indices = PairOf(Random(DType::kI64, {lines}, 3));
          MaxOver(both.cpu, dim, values.cpu, indices.cpu);
          MaxOver(both.gpu, dim, values.gpu, indices.gpu);
          ExpectSame(values, "the largest of " + shape.ToString());
          ExpectSame(indices, "its place in " + shape.ToString());
        }
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels::test
