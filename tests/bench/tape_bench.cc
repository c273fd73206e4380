// Measures what the tape costs beside the kernels: tape_bench [runs].
//
// One step records a chain of ops on tensors of four elements, walks it and resets the tape; the
// bare run calls the same kernels on tensors that exist already. Prints, for each chain, the median
// of paired runs in nanoseconds an op, and the heap allocations of a warm step, counted by
// replacing operator new.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/transformer.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/matmul.h"
#include "sherd/runtime/kernels/rms_norm.h"
#include "tests/support/counting_new.h"

namespace sherd {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::Write;

constexpr int kOps = 1000;

struct Chain {
  std::string name;
  std::function<void()> recorded;
  std::function<void()> bare;
};

double NanosecondsAnOp(const std::function<void()>& body) {
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count() * 1e9 / kOps;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Measure(const Chain& chain, int runs) {
  for (int i = 0; i < 5; ++i) {
    chain.recorded();
    chain.bare();
  }
  const int64_t before = testing::HeapAllocations();
  chain.recorded();
  const int64_t recorded = testing::HeapAllocations() - before;
  chain.bare();
  const int64_t bare = testing::HeapAllocations() - before - recorded;
  std::vector<double> with, without, overhead;
  for (int i = 0; i < runs; ++i) {
    with.push_back(NanosecondsAnOp(chain.recorded));
    without.push_back(NanosecondsAnOp(chain.bare));
    overhead.push_back(with.back() - without.back());
  }
  std::printf("%-28s %9.0f %9.0f %9.0f %12.3f %12.3f\n", chain.name.c_str(), Median(with),
              Median(without), Median(overhead), static_cast<double>(recorded) / kOps,
              static_cast<double>(bare) / kOps);
}

class Chains {
 public:
  Chains() {
    for (Tensor* t : {&a_, &b_, &c_, &grad_}) *t = Tensor::Zeros(device_, DType::kF32, {1, 4});
    weight_ = Tensor::Zeros(device_, DType::kF32, {4, 4});
    gain_ = Tensor::Zeros(device_, DType::kF32, {4});
    inv_ = Tensor::Zeros(device_, DType::kF32, {1});
  }

  std::vector<Chain> All() {
    const Variable other(b_);
    const Variable weight = Variable::Leaf(weight_);
    const Variable gain = Variable::Leaf(gain_);
    return {
        Of(
            "add", [other](const Variable& x) { return Add(x, other); },
            [this] { kernels::Add(a_, b_, c_); }),
        Of(
            "mul", [other](const Variable& x) { return Mul(x, other); },
            [this] {
              kernels::Mul(a_, b_, c_);
              kernels::Mul(a_, b_, c_);
            }),
        Of(
            "silu", [](const Variable& x) { return Silu(x); },
            [this] {
              kernels::Silu(a_, c_);
              kernels::SiluBackward(grad_, a_, c_);
            }),
        Of(
            "linear, weight trained", [weight](const Variable& x) { return Linear(x, weight); },
            [this] {
              kernels::Matmul(a_, false, weight_, true, c_);
              kernels::Matmul(grad_, false, weight_, false, c_);
              kernels::Matmul(grad_, true, a_, false, weight_, Write::kAdd);
            }),
        Of(
            "rms_norm, gain trained", [gain](const Variable& x) { return RmsNorm(x, gain); },
            [this] {
              kernels::RmsNorm(a_, gain_, 1e-5, c_, inv_);
              kernels::RmsNormBackward(grad_, a_, gain_, inv_, c_, Write::kOverwrite, gain_,
                                       Write::kAdd);
            }),
    };
  }

 private:
  Chain Of(const char* name, std::function<Variable(const Variable&)> op,
           std::function<void()> kernels) {
    return {name, [this, op] { Step(op); },
            [kernels] {
              for (int i = 0; i < kOps; ++i) kernels();
            }};
  }

  void Step(const std::function<Variable(const Variable&)>& op) {
    Variable y = Variable::Leaf(a_);
    {
      const Recording on(tape_);
      for (int i = 0; i < kOps; ++i) y = op(y);
    }
    tape_.Backward({&y, 1}, {&grad_, 1});
    tape_.Reset();
  }

  Device device_ = Device::Cpu();
  Tape tape_;
  Tensor a_, b_, c_, grad_, weight_, gain_, inv_;
};

}  // namespace
}  // namespace sherd

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::atoi(argv[1]) : 31;
  sherd::Chains chains;
  std::printf("%-28s %9s %9s %9s %12s %12s\n", "chain of 1000 ops, ns an op", "recorded", "bare",
              "overhead", "allocations", "of kernels");
  for (const sherd::Chain& chain : chains.All()) sherd::Measure(chain, runs);
}
