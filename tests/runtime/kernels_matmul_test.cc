#include "sherd/runtime/kernels/matmul.h"

#include <utility>

#include "sherd/runtime/kernels/internal/onednn_matmul.h"
#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

struct Sizes {
  int64_t m, n, k;
};

std::vector<double> Product(const Values& a, bool ta, const Values& b, bool tb, Sizes s) {
  std::vector<double> c(static_cast<size_t>(s.m * s.n), 0.0);
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0.0;
      for (int64_t k = 0; k < s.k; ++k) {
        sum += a[ta ? k * s.m + i : i * s.k + k] * b[tb ? j * s.k + k : k * s.n + j];
      }
      c[static_cast<size_t>(i * s.n + j)] = sum;
    }
  }
  return c;
}

void CheckProduct(DType in, DType out_dtype, Sizes s, bool ta, bool tb, Write write, Lay lay) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(1, s.k)));
  const Values a = RandomValues(in, ta ? Shape{s.k, s.m} : Shape{s.m, s.k}, 1, scale);
  const Values b = RandomValues(in, tb ? Shape{s.n, s.k} : Shape{s.k, s.n}, 2);
  const Values before = RandomValues(out_dtype, {s.m, s.n}, 3);
  CheckEverywhere({Written(write, before, Product(a, ta, b, tb, s))}, ToleranceOf(out_dtype),
                  Describe(in, write, {s.m, s.n, s.k}) + (ta ? " ta" : "") + (tb ? " tb" : ""),
                  [&](const Device& device) {
                    const Tensor out = ToTensor(device, before, lay);
                    Matmul(ToTensor(device, a, lay), ta, ToTensor(device, b, lay), tb, out, write);
                    return Results{FromTensor(out)};
                  });
}

TEST(MatmulTest, AgreesWithPlainLoops) {
  const std::pair<DType, DType> dtypes[] = {
      {DType::kF32, DType::kF32},  {DType::kF64, DType::kF64}, {DType::kBF16, DType::kBF16},
      {DType::kBF16, DType::kF32}, {DType::kF16, DType::kF16}, {DType::kF16, DType::kF32}};
  for (auto [in, out] : dtypes) {
    for (Sizes s : {Sizes{1, 1, 1}, Sizes{1, 7, 5}, Sizes{33, 1, 17}, Sizes{19, 67, 300}}) {
      for (bool ta : {false, true}) {
        for (bool tb : {false, true}) {
          CheckProduct(in, out, s, ta, tb, Write::kOverwrite, Lay::kContiguous);
          CheckProduct(in, out, s, ta, tb, Write::kAdd, Lay::kPadded);
        }
      }
    }
  }
}

TEST(MatmulTest, GradientOfAWeightOverManyRowsHasOneOrder) {
  for (DType in : kFloats) {
    const DType out = WideOf(in);
    CheckProduct(in, out, {65, 48, 2048}, true, false, Write::kAdd, Lay::kContiguous);
    CheckProduct(in, out, {256, 130, 400}, false, true, Write::kOverwrite, Lay::kContiguous);
  }
}

// oneDNN left to itself splits the sum over k between threads when the output is small.
TEST(MatmulTest, LongSumsOfAFewOutputsHaveOneOrder) {
  for (DType in : kFloats) {
    const DType out = WideOf(in);
    CheckProduct(in, out, {16, 32, 20000}, true, false, Write::kOverwrite, Lay::kContiguous);
    CheckProduct(in, out, {3, 300, 4000}, false, true, Write::kOverwrite, Lay::kContiguous);
  }
}

TEST(MatmulTest, LargeProductsAreRightAtTheSeamsOfTheirPieces) {
  for (DType in : kFloats) {
    CheckProduct(in, in, {1500, 130, 200}, false, true, Write::kAdd, Lay::kPadded);
    CheckProduct(in, in, {700, 300, 170}, true, false, Write::kOverwrite, Lay::kContiguous);
    CheckProduct(in, in, {20, 2500, 700}, false, false, Write::kOverwrite, Lay::kPadded);
  }
}

// Matmul may prefer our own loops for bf16; the path through oneDNN must be right all the same.
TEST(MatmulTest, OneDnnOnBf16AgreesWithPlainLoops) {
  const Sizes s = {65, 70, 33};
  const Values a = RandomValues(DType::kBF16, {s.m, s.k}, 1);
  const Values b = RandomValues(DType::kBF16, {s.k, s.n}, 2);
  for (Write write : kWrites) {
    const Device device = Device::Cpu();
    const Values before = RandomValues(DType::kF32, {s.m, s.n}, 3);
    const Tensor ta = ToTensor(device, a), tb = ToTensor(device, b), out = ToTensor(device, before);
    const bool done = internal::OneDnnMatmul(device, {.a = static_cast<const char*>(ta.raw()),
                                                      .b = static_cast<const char*>(tb.raw()),
                                                      .out = static_cast<char*>(out.raw()),
                                                      .in_dtype = DType::kBF16,
                                                      .out_dtype = DType::kF32,
                                                      .m = s.m,
                                                      .n = s.n,
                                                      .k = s.k,
                                                      .a_row = s.k,
                                                      .a_col = 1,
                                                      .b_row = s.n,
                                                      .b_col = 1,
                                                      .out_row = s.n,
                                                      .add = write == Write::kAdd});
    if (!done) GTEST_SKIP() << "oneDNN has no bf16 matmul here";
    ExpectNear(FromTensor(out), Written(write, before, Product(a, false, b, false, s)), 1e-5,
               "bf16");
  }
}

TEST(MatmulTest, EmptySumIsZero) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      CheckProduct(dtype, dtype, {4, 3, 0}, false, false, write, Lay::kContiguous);
    }
    CheckProduct(dtype, dtype, {0, 3, 2}, false, false, Write::kOverwrite, Lay::kContiguous);
  }
}

TEST(MatmulTest, RepeatedCallsGiveTheSameBits) {
  const Device device = Device::Cpu({.threads = 3});
  const Tensor a = ToTensor(device, RandomValues(DType::kF32, {300, 200}, 1));
  const Tensor b = ToTensor(device, RandomValues(DType::kF32, {200, 100}, 2));
  const Tensor out = Tensor::Zeros(device, DType::kF32, {300, 100});
  Matmul(a, false, b, false, out);
  const std::vector<double> first = FromTensor(out);
  for (int i = 0; i < 5; ++i) {
    Matmul(a, false, b, false, out);
    EXPECT_TRUE(SameBits(FromTensor(out), first));
  }
}

TEST(MatmulTest, InfinityPropagates) {
  for (DType dtype : kFloats) {
    Values a = RandomValues(dtype, {5, 4}, 1);
    a[6] = std::numeric_limits<double>::infinity();
    const Device device = Device::Cpu();
    const Tensor b = ToTensor(device, RandomValues(dtype, {4, 3}, 2));
    const Tensor out = Tensor::Zeros(device, dtype, {5, 3});
    Matmul(ToTensor(device, a), false, b, false, out);
    const std::vector<double> got = FromTensor(out);
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isfinite(got[i]), i / 3 != 1);
  }
}

}  // namespace
}  // namespace sherd::kernels::test
