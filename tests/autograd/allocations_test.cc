// A warm step makes no heap allocation per op: counted by replacing operator new.

#include <gtest/gtest.h>

#include <functional>

#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "tests/support/counting_new.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

// Allocations of a warm step of `ops` ops.
int64_t StepAllocations(int ops, int64_t elems, const std::function<Variable(Variable)>& op) {
  const Device device = Device::Cpu();
  const Tensor x = NormalTensor(device, DType::kF32, {elems}, 1);
  const Tensor seed = NormalTensor(device, DType::kF32, {elems}, 2);
  Tape tape;
  int64_t count = 0;
  for (int step = 0; step < 4; ++step) {
    const int64_t before = HeapAllocations();
    {
      const Recording on(tape);
      Variable y = Variable::Leaf(x);
      for (int i = 0; i < ops; ++i) y = op(y);
      tape.Backward({&y, 1}, {&seed, 1});
      tape.Reset();
    }
    count = HeapAllocations() - before;
  }
  return count;
}

// What a step costs however many ops it has: the recording, its random context, the tape's home.
constexpr int64_t kPerStep = 8;

class AllocationsTest : public ::testing::TestWithParam<int64_t> {};

TEST_P(AllocationsTest, NonePerOp) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "under AddressSanitizer small objects come from the heap";
#endif
  const int64_t elems = GetParam();
  const auto chains = {
      std::function<Variable(Variable)>([](Variable x) { return Add(x, x); }),
      std::function<Variable(Variable)>([](Variable x) { return Mul(x, Scale(x, 0.5)); }),
      std::function<Variable(Variable)>([](Variable x) { return Silu(x); }),
      std::function<Variable(Variable)>([elems](Variable x) {
        return Reshape(Reshape(x, {1, elems}), {elems});
      }),
  };
  for (const auto& chain : chains) {
    EXPECT_LE(StepAllocations(50, elems, chain), kPerStep);
    EXPECT_LE(StepAllocations(500, elems, chain), kPerStep);
  }
}

// Small blocks and blocks of more than a page take different ways through the allocator.
INSTANTIATE_TEST_SUITE_P(Elements, AllocationsTest, ::testing::Values(4, 5000));

}  // namespace
}  // namespace sherd::testing
