// GradCheck itself; what it says of our ops is in the op table (tests/support/op_table.h).

#include "sherd/autograd/gradcheck.h"

#include <gtest/gtest.h>

#include <vector>

#include "sherd/autograd/ops/elementwise.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

using Inputs = std::span<const Variable>;

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

TEST(GradCheckItself, FindsAWrongGradient) {
  // The gradient of the detached factor is missing.
  const std::vector<Tensor> inputs = {NormalTensor(Cpu(), DType::kF64, {3}, 1)};
  const GradCheckResult result =
      GradCheck([](Inputs in) { return Mul(in[0], in[0].Detach()); }, inputs);
  EXPECT_GT(result.worst_error, 0.01);
  EXPECT_TRUE(Contains(result.worst, "input 0"));
}

TEST(GradCheckItself, RefusesOtherDtypes) {
  const std::vector<Tensor> inputs = {NormalTensor(Cpu(), DType::kF32, {3}, 1)};
  EXPECT_TRUE(Contains(ErrorOf([&] { GradCheck([](Inputs in) { return Silu(in[0]); }, inputs); }),
                       "f32 [3]"));
}

}  // namespace
}  // namespace sherd::testing
