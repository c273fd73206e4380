#include "sherd/runtime/kernels/random.h"

#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

TEST(RandomTest, ValuesFollowTheirDefinition) {
  for (DType dtype : kFloats) {
    const int64_t n = 5003, first = 17;
    std::vector<double> normal(n), uniform(n);
    for (int64_t i = 0; i < n; ++i) {
      const auto e = static_cast<uint64_t>(first + i);
      const auto words = Philox4x32(42, e / 2, 0);
      const size_t at = static_cast<size_t>(i);
      normal[at] = Rounded(1.0 + 0.5 * Normal(words[e % 2 * 2], words[e % 2 * 2 + 1]), dtype);
      uniform[at] = Rounded(-1.0 + 3.0 * UniformOpen(Philox4x32(42, e / 4, 0)[e % 4]), dtype);
    }
    CheckEverywhere(
        {normal, uniform}, 1e-15, std::string(NameOf(dtype)), [&](const Device& device) {
          const Tensor a = Tensor::Empty(device, dtype, {n}), b = Tensor::Empty(device, dtype, {n});
          FillNormal(a, 42, first, 1.0, 0.5);
          FillUniform(b, 42, first, -1.0, 2.0);
          return Results{FromTensor(a), FromTensor(b)};
        });
  }
}

TEST(RandomTest, PiecesMakeTheWhole) {
  const Device device = Device::Cpu({.threads = 3});
  const Tensor whole = Tensor::Empty(device, DType::kF32, {4000}),
               pieces = Tensor::Empty(device, DType::kF32, {4000});
  FillNormal(whole, 1, 0, 0.0, 1.0);
  for (int64_t begin : {0, 1333, 2667}) {
    const int64_t end = std::min<int64_t>(4000, begin + 1334);
    FillNormal(pieces.Slice(0, begin, end), 1, begin, 0.0, 1.0);
  }
  EXPECT_TRUE(SameBits(FromTensor(whole), FromTensor(pieces)));
}

TEST(RandomTest, MomentsOfTheNormalAreRight) {
  const Device device = Device::Cpu();
  const Tensor x = Tensor::Empty(device, DType::kF64, {100000});
  FillNormal(x, 5, 0, 2.0, 3.0);
  double sum = 0.0, squares = 0.0;
  for (double value : FromTensor(x)) {
    sum += value;
    squares += (value - 2.0) * (value - 2.0);
  }
  EXPECT_NEAR(sum / 1e5, 2.0, 0.05);
  EXPECT_NEAR(squares / 1e5, 9.0, 0.2);
}

}  // namespace
}  // namespace sherd::kernels::test
