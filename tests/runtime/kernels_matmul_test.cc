#include "sherd/runtime/kernels/matmul.h"

#include <tuple>

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
  const std::pair<DType, DType> dtypes[] = {{DType::kF32, DType::kF32},
                                            {DType::kF64, DType::kF64},
                                            {DType::kBF16, DType::kBF16},
                                            {DType::kBF16, DType::kF32}};
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
    const DType out = in == DType::kBF16 ? DType::kF32 : in;
    CheckProduct(in, out, {65, 48, 2048}, true, false, Write::kAdd, Lay::kContiguous);
    CheckProduct(in, out, {256, 130, 400}, false, true, Write::kOverwrite, Lay::kContiguous);
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
