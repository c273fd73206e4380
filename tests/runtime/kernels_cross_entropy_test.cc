#include "sherd/runtime/kernels/cross_entropy.h"

#include "sherd/runtime/base/error.h"
#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

constexpr int64_t kIgnore = -100;

void Check(DType dtype, int64_t n, int64_t v, Write write, Lay lay, bool in_place) {
  const Values logits = RandomValues(dtype, {n, v}, 1, 3.0);
  const Values before = in_place ? logits : RandomValues(dtype, {n, v}, 2);
  std::vector<int64_t> targets(static_cast<size_t>(n));
  std::vector<double> lse(targets.size()), grad(logits.v.size());
  double loss = 0.0, count = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t target = i % 5 == 2 ? kIgnore : i * 7 % v;
    targets[static_cast<size_t>(i)] = target;
    double sum = 0.0;
    for (int64_t j = 0; j < v; ++j) sum += std::exp(logits[i * v + j]);
    lse[static_cast<size_t>(i)] = std::log(sum);
    if (target == kIgnore) continue;
    loss += std::log(sum) - logits[i * v + target];
    count += 1.0;
    for (int64_t j = 0; j < v; ++j) {
      grad[static_cast<size_t>(i * v + j)] =
          0.25 * (std::exp(logits[i * v + j]) / sum - (j == target ? 1.0 : 0.0));
    }
  }
  CheckEverywhere(
      {{loss}, {count}, lse, Written(write, before, grad)}, ToleranceOf(dtype),
      Describe(dtype, write, {n, v}), [&](const Device& device) {
        const Tensor t = ToTensor(device, logits, lay);
        const Tensor ids = Tensor::FromHost<int64_t>(device, targets, {n});
        const Tensor tlse = Tensor::Empty(device, WideOf(dtype), {n});
        const CrossEntropyResult r = CrossEntropy(t, ids, kIgnore, tlse);
        const Tensor out = in_place ? t : ToTensor(device, before, lay);
        CrossEntropyBackward(t, ids, kIgnore, tlse, 0.25, out, write);
        return Results{
            {r.loss_sum}, {static_cast<double>(r.count)}, FromTensor(tlse), FromTensor(out)};
      });
}

TEST(CrossEntropyTest, AgreesWithPlainLoops) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      Check(dtype, 1, 1, write, Lay::kContiguous, false);
      Check(dtype, 13, 37, write, Lay::kPadded, false);
      Check(dtype, 200, 501, write, Lay::kContiguous, false);
    }
    Check(dtype, 13, 37, Write::kOverwrite, Lay::kPadded, true);
    Check(dtype, 200, 501, Write::kOverwrite, Lay::kContiguous, true);
  }
}

TEST(CrossEntropyTest, LargeLogitsDoNotOverflow) {
  const Device device = Device::Cpu();
  const Values logits = {DType::kF32, {2, 3}, {1e30, 0.0, -1e30, -5e4, -5e4, -5e4}};
  const Tensor ids = Tensor::FromHost<int32_t>(device, std::vector<int32_t>{0, 1}, {2});
  const Tensor lse = Tensor::Empty(device, DType::kF32, {2});
  const CrossEntropyResult r = CrossEntropy(ToTensor(device, logits), ids, kIgnore, lse);
  EXPECT_NEAR(r.loss_sum, std::log(3.0), 1e-2);  // lse is kept in f32, near -5e4
}

TEST(CrossEntropyTest, AllRowsIgnoredCountNothing) {
  const Device device = Device::Cpu();
  const Tensor logits = ToTensor(device, RandomValues(DType::kF32, {2, 3}, 1));
  const Tensor ids = Tensor::FromHost<int64_t>(device, std::vector<int64_t>{kIgnore, kIgnore}, {2});
  const Tensor lse = Tensor::Empty(device, DType::kF32, {2});
  const CrossEntropyResult r = CrossEntropy(logits, ids, kIgnore, lse);
  EXPECT_EQ(r.count, 0);
  EXPECT_EQ(r.loss_sum, 0.0);
  CrossEntropyBackward(logits, ids, kIgnore, lse, 1.0, logits);
  EXPECT_EQ(FromTensor(logits), std::vector<double>(6, 0.0));
}

TEST(CrossEntropyTest, BadTargetIsNamedAndNothingIsWritten) {
  const Device device = Device::Cpu();
  const Tensor logits = ToTensor(device, RandomValues(DType::kF32, {3, 4}, 1));
  const Tensor ids = Tensor::FromHost<int32_t>(device, std::vector<int32_t>{0, kIgnore, 4}, {3});
  const Tensor lse = Tensor::Zeros(device, DType::kF32, {3});
  const std::vector<double> before = FromTensor(logits);
  try {
    CrossEntropy(logits, ids, kIgnore, lse);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("target 4 at index 2 is outside [0, 4)"),
              std::string::npos)
        << error.what();
  }
  EXPECT_EQ(FromTensor(lse), std::vector<double>(3, 0.0));
  EXPECT_THROW(CrossEntropyBackward(logits, ids, kIgnore, lse, 1.0, logits), Error);
  EXPECT_EQ(FromTensor(logits), before);
}

}  // namespace
}  // namespace sherd::kernels::test
