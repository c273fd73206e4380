#include <optional>

#include "sherd/runtime/kernels/cross_entropy.h"
#include "sherd/runtime/kernels/pointwise_loss.h"
#include "tests/runtime/cuda_support.h"
#include "tests/support/tensors.h"

// Losses, which wait for their sums.
namespace sherd::kernels::test {
namespace {

using sherd::testing::Contains;
using sherd::testing::ErrorOf;

class CudaLossesTest : public ::testing::TestWithParam<DType> {
 protected:
  // One target for each row; every third is the ignored one.
  Tensor Targets(int64_t rows, int64_t classes, bool narrow) {
    std::vector<int64_t> ids(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      ids[static_cast<size_t>(i)] = i % 3 == 2 ? -100 : (i * 7919 + 13) % classes;
    }
    if (!narrow) return sherd::testing::TensorOf(Cpu(), ids, {rows});
    return sherd::testing::TensorOf(Cpu(), std::vector<int32_t>(ids.begin(), ids.end()), {rows});
  }
  double close() const { return CloseFor(dtype_); }

  const DType dtype_ = GetParam();
  uint64_t seed_ = 0;
};

TEST_P(CudaLossesTest, CrossEntropy) {
  for (int64_t classes : {1, 31, 33, 1000, 5000, 17001}) {
    for (View lie : {View::kContiguous, View::kOddPadded, View::kPadded, View::kTransposed}) {
      for (Write write : kWrites) {
        const int64_t rows = classes < 100 ? 37 : 4;
        const std::string what = Describe(dtype_, write, {rows, classes}) + NameOf(lie);
        const bool more = write == Write::kAdd;
        const CrossEntropyOptions options = {.label_smoothing = more ? 0.1 : 0.0,
                                             .z_loss = more ? 0.01 : 0.0};
        const Tensor logits = Laid(lie, dtype_, {rows, classes}, ++seed_);
        Scale(logits, 4.0, logits);
        const Tensor targets = Targets(rows, classes, more),
                     lse = Random(WideOf(dtype_), {rows}, ++seed_);
        const Tensor d_logits = On(logits), d_targets = On(targets), d_lse = On(lse);
        const CrossEntropyResult got = kernels::CrossEntropy(d_logits, d_targets, options, d_lse);
        const CrossEntropyResult want = kernels::CrossEntropy(logits, targets, options, lse);
        EXPECT_EQ(got.count, want.count) << what;
        EXPECT_NEAR(got.loss_sum, want.loss_sum,
                    CloseFor(WideOf(dtype_)) * std::max(1.0, std::abs(want.loss_sum)))
            << what;
        ExpectSame({lse, d_lse}, what + ", lse", CloseFor(WideOf(dtype_)));
        const View to = lie == View::kTransposed ? View::kPadded : lie;
        const Tensor grad = Laid(to, dtype_, {rows, classes}, ++seed_);
        const Tensor d_grad = On(grad);
        CrossEntropyBackward(d_logits, d_targets, options, On(lse), 0.5, d_grad, write);
        CrossEntropyBackward(logits, targets, options, lse, 0.5, grad, write);
        ExpectSame({grad, d_grad}, what + ", backward", close());
      }
    }
  }
}

TEST_P(CudaLossesTest, CrossEntropyOfPiecesAndOverTheLogits) {
  const int64_t rows = 11, classes = 300;
  const Tensor logits = Laid(View::kContiguous, dtype_, {rows, classes}, 3);
  const Tensor targets = Targets(rows, classes, false);
  const CrossEntropyOptions options = {.label_smoothing = 0.2, .z_loss = 0.01};
  const Tensor lse = Random(WideOf(dtype_), {rows}, 4), d_lse = On(lse);
  const Tensor d_logits = On(logits), d_targets = On(targets);
  CrossEntropyPieces pieces(d_targets, classes, options);
  for (int64_t first = 0; first < classes; first += 120) {
    pieces.Add(d_logits.Slice(1, first, std::min(first + 120, classes)), first);
  }
  const int64_t before = emulated::ReadStatistics().synchronisations;
  const CrossEntropyResult got = pieces.Finish(d_lse);
  EXPECT_EQ(emulated::ReadStatistics().synchronisations - before, 1) << "waits for the device";
  const CrossEntropyResult want = kernels::CrossEntropy(logits, targets, options, lse);
  EXPECT_NEAR(got.loss_sum, want.loss_sum, CloseFor(WideOf(dtype_)) * want.loss_sum);
  EXPECT_EQ(got.count, want.count);
  ExpectSame({lse, d_lse}, "lse of pieces", CloseFor(WideOf(dtype_)));
  for (int64_t first = 0; first < classes; first += 120) {
    const Tensor piece = d_logits.Slice(1, first, std::min(first + 120, classes));
    pieces.Backward(piece, first, d_lse, 2.0, piece);
  }
  CrossEntropyBackward(logits, targets, options, lse, 2.0, logits);
  ExpectSame({logits, d_logits}, "gradient over the logits", 2 * close());
}

TEST_P(CudaLossesTest, CrossEntropyOfInfinities) {
  const double inf = std::numeric_limits<double>::infinity();
  const int64_t classes = 700;
  const Tensor logits = Laid(View::kContiguous, dtype_, {4, classes}, 3);
  for (int64_t c = 0; c < classes; ++c) Poke(logits, c, -inf);
  Poke(logits, classes + 600, inf);
  Poke(logits, 2 * classes + 3, -inf);
  Poke(logits, 3 * classes + 1, std::nan(""));
  const Tensor targets = sherd::testing::TensorOf<int64_t>(Cpu(), {1, 2, 4, 5}, {4});
  const Tensor lse = Random(WideOf(dtype_), {4}, 4), d_lse = On(lse);
  kernels::CrossEntropy(On(logits), On(targets), {}, d_lse);
  kernels::CrossEntropy(logits, targets, {}, lse);
  ExpectSame({lse, d_lse}, "lse of infinities", CloseFor(WideOf(dtype_)));
}

TEST_P(CudaLossesTest, TargetsOutOfRangeAreNamed) {
  for (bool narrow : {false, true}) {
    const Tensor logits = On(Laid(View::kContiguous, dtype_, {5, 9}, 3));
    const Tensor targets = Targets(5, 9, narrow);
    narrow ? targets.data<int32_t>()[3] = 9 : targets.data<int64_t>()[3] = 9;
    const Tensor lse = On(Random(WideOf(dtype_), {5}, 4));
    const std::string error = ErrorOf([&] { kernels::CrossEntropy(logits, On(targets), {}, lse); });
    for (const char* part : {"[cross_entropy]", "target 9", " 3 ", "[0, 9)"}) {
      EXPECT_TRUE(Contains(error, part));
    }
    // Said once; what comes later is not blamed.
    const CrossEntropyResult next =
        kernels::CrossEntropy(logits, On(Targets(5, 9, narrow)), {}, lse);
    EXPECT_EQ(next.count, 4);
  }
}

TEST_P(CudaLossesTest, NoRowsHaveNoLoss) {
  const Tensor logits = On(Tensor::Empty(Cpu(), dtype_, {0, 9}));
  const Tensor lse = On(Tensor::Empty(Cpu(), WideOf(dtype_), {0}));
  const Tensor targets = On(Tensor::Empty(Cpu(), DType::kI64, {0}));
  const CrossEntropyResult result = kernels::CrossEntropy(logits, targets, {}, lse);
  EXPECT_EQ(result.count, 0);
  EXPECT_EQ(result.loss_sum, 0.0);
  CrossEntropyBackward(logits, targets, {}, lse, 1.0, logits);
  EXPECT_EQ(PointwiseLossSum(PointwiseLoss::kSquaredError, logits, logits, {}).count, 0);
}

TEST_P(CudaLossesTest, PointwiseLosses) {
  for (PointwiseLoss loss : {PointwiseLoss::kBceWithLogits, PointwiseLoss::kSquaredError}) {
    for (const Shape& shape : {Shape{1}, Shape{31}, Shape{33, 3}, Shape{5, 2001}}) {
      for (Write write : kWrites) {
        const Tensor x = ToTensor(Cpu(), RandomValues(dtype_, shape, ++seed_, 3.0), Lay::kPadded);
        Values y = RandomValues(DType::kF32, shape, ++seed_);
        for (size_t i = 0; i < y.v.size(); ++i)
          y.v[i] = i % 4 == 1 ? -7.0 : std::exp2(-std::abs(y.v[i]));
        for (double& v : y.v) v = Rounded(v, DType::kF32);
        const Tensor targets = ToTensor(Cpu(), y), d_x = On(x), d_targets = On(targets);
        const std::optional<double> ignored = -7.0;
        const PointwiseLossResult got = PointwiseLossSum(loss, d_x, d_targets, ignored);
        const PointwiseLossResult want = PointwiseLossSum(loss, x, targets, ignored);
        EXPECT_EQ(got.count, want.count);
        EXPECT_NEAR(got.loss_sum, want.loss_sum, 1e-12 * std::max(1.0, want.loss_sum));
        const Tensor grad = ToTensor(Cpu(), RandomValues(dtype_, shape, ++seed_), Lay::kPadded);
        const Tensor d_grad = On(grad);
        PointwiseLossBackward(loss, d_x, d_targets, ignored, 0.25, d_grad, write);
        PointwiseLossBackward(loss, x, targets, ignored, 0.25, grad, write);
        ExpectSame({grad, d_grad}, "pointwise loss of " + shape.ToString(), CloseFor(dtype_));
      }
    }
  }
}

TEST_P(CudaLossesTest, TheFirstLabelOutsideOfProbabilitiesIsNamed) {
  Values y = RandomValues(DType::kF32, {9000}, 3);
  for (double& v : y.v) v = 0.25;
  y.v[8999] = 2.0;
  y.v[4100] = -0.5;
  y.v[4101] = std::nan("");
  const Tensor x = test::Random(dtype_, {9000}, 4), targets = ToTensor(Cpu(), y);
  const auto sum = [](const Tensor& x, const Tensor& targets) {
    return ErrorOf([&] { PointwiseLossSum(PointwiseLoss::kBceWithLogits, x, targets, {}); });
  };
  const std::string error = sum(On(x), On(targets));
  EXPECT_TRUE(Contains(error, "label -0.5 at index 4100 is outside [0, 1]"));
  EXPECT_EQ(error, sum(x, targets));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaLossesTest, ::testing::ValuesIn(kFloats),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

}  // namespace
}  // namespace sherd::kernels::test
