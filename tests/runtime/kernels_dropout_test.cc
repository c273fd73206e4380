#include "sherd/runtime/kernels/dropout.h"

#include "sherd/runtime/base/error.h"
#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

constexpr uint64_t kKey = 0x123456789abcdef0u;

void Check(DType dtype, const Shape& shape, double p, Write write, Lay lay, bool in_place) {
  const int64_t heads = shape.rank() == 4 ? shape[2] : 1, c = shape.back();
  const int64_t positions = shape.rank() >= 3 ? shape[1] : 1;
  std::vector<int64_t> samples(static_cast<size_t>(shape[0]));
  for (size_t b = 0; b < samples.size(); ++b)
    samples[b] = (int64_t{5} << 33) + 1000 - 3 * static_cast<int64_t>(b);
  const Values x = RandomValues(dtype, shape, 1);
  const Values before = in_place ? x : RandomValues(dtype, shape, 2);
  std::vector<double> want(x.v.size());
  for (int64_t i = 0; i < shape.numel(); ++i) {
    const auto channel = static_cast<uint64_t>(i % c);
    const auto h = static_cast<uint64_t>(i / c % heads);
    const auto t = static_cast<uint64_t>(i / c / heads % positions);
    const int64_t sample = samples[static_cast<size_t>(i / c / heads / positions)];
    const uint32_t word = Philox4x32(kKey, static_cast<uint64_t>(sample),
                                     h << 52 | t << 26 | channel / 4)[channel % 4];
    if (word * 0x1p-32 >= p) want[static_cast<size_t>(i)] = x[i] / (1.0 - p);
  }
  CheckEverywhere({Written(write, before, want)}, ToleranceOf(dtype), Describe(dtype, write, shape),
                  [&](const Device& device) {
                    const Tensor from = ToTensor(device, x, lay);
                    const Tensor out = in_place ? from : ToTensor(device, before, lay);
                    Dropout(from, kKey, samples, p, out, write);
                    return Results{FromTensor(out)};
                  });
}

TEST(DropoutTest, FollowsItsDefinition) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      Check(dtype, {3, 7}, 0.5, write, Lay::kContiguous, false);
      Check(dtype, {2, 5, 33}, 0.1, write, Lay::kPadded, false);
      Check(dtype, {2, 9, 3, 65}, 0.9, write, Lay::kPadded, true);
      Check(dtype, {5, 30, 600}, 0.3, write, Lay::kContiguous, false);
    }
    Check(dtype, {3, 7}, 0.0, Write::kOverwrite, Lay::kContiguous, false);
  }
}

TEST(DropoutTest, ProbabilityOneDropsEverything) {
  const Device device = Device::Cpu();
  const Tensor x = ToTensor(device, RandomValues(DType::kF32, {1, 70}, 1));
  const std::vector<int64_t> samples = {4};
  Dropout(x, kKey, samples, 1.0, x);
  EXPECT_EQ(FromTensor(x), std::vector<double>(70, 0.0));
}

TEST(DropoutTest, ARowDropsTheSameElementsWhereverItLies) {
  const Device device = Device::Cpu();
  const Tensor x = Tensor::Empty(device, DType::kF32, {4, 3, 50});
  Fill(x, 1.0);
  const std::vector<int64_t> samples = {10, 11, 12, 13}, last = {13};
  const Tensor all = Tensor::Empty(device, DType::kF32, {4, 3, 50}),
               one = Tensor::Empty(device, DType::kF32, {1, 3, 50});
  Dropout(x, kKey, samples, 0.5, all);
  Dropout(x.Slice(0, 0, 1), kKey, last, 0.5, one);
  EXPECT_EQ(FromTensor(all.Slice(0, 3, 4)), FromTensor(one));
  EXPECT_NE(FromTensor(all.Slice(0, 0, 1)), FromTensor(one));
}

TEST(DropoutTest, KeepsTheRightShare) {
  const Device device = Device::Cpu();
  const Tensor x = Tensor::Empty(device, DType::kF64, {10, 100, 100});
  Fill(x, 1.0);
  const std::vector<int64_t> samples = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  Dropout(x, kKey, samples, 0.25, x);
  int64_t kept = 0;
  for (double value : FromTensor(x)) kept += value != 0.0;
  EXPECT_NEAR(static_cast<double>(kept), 75000.0, 700.0);  // five standard deviations
}

TEST(DropoutTest, RefusesABadProbability) {
  const Device device = Device::Cpu();
  const Tensor x = Tensor::Zeros(device, DType::kF32, {1, 4});
  const std::vector<int64_t> samples = {0};
  for (double p : {-0.1, 1.5, std::nan("")}) {
    EXPECT_THROW(Dropout(x, kKey, samples, p, x), Error) << p;
  }
}

}  // namespace
}  // namespace sherd::kernels::test
