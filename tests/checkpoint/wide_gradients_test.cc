// Checkpoints of blocks that read bf16 parameters whose gradients are kept in f32.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sherd/autograd/cast_call.h"
#include "sherd/autograd/module.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/reduce.h"
#include "tests/checkpoint/llama.h"
#include "tests/support/wide_host.h"

namespace sherd::testing {
namespace {

// A step of three bf16 blocks; gradients of all parameters in f32, and how often each was written.
struct WideStep {
  Tensor loss;
  Tensor grad_x;
  std::vector<Tensor> grads;
  std::vector<int> contributions;
};

// `dtype` is what ops run in; the values are the same.
WideStep RunWide(const std::function<void(LlamaStack&)>& wrap, int calls,
                 DType dtype = DType::kBF16) {
  const Device device = Device::Cpu();
  LlamaStack model(device, DType::kF32, 3);
  Initialize(model, device, 3);
  WideHost host(DType::kF32);
  const std::vector<Parameter> parameters = model.parameters();
  for (const Parameter& p : parameters) host.Adopt(p, DType::kBF16, dtype);
  wrap(model);
  const std::vector<int64_t> samples = {20, 21};
  const Variable x = Variable::Leaf(
      NormalTensor(device, DType::kF32, {2, GridModel::kTokens, GridBlock::kChannels}, 17));
  WideStep step;
  Tape tape;
  {
    const Recording on(tape, {.seed = 5, .step = 2, .samples = samples});
    Variable loss;
    for (int i = 0; i < calls; ++i) {
      const Variable y = Cast(model(Cast(Cast(x, DType::kBF16), dtype)), DType::kF32);
      const Variable energy = Sum(Mul(y, y));
      loss = i == 0 ? energy : Add(loss, energy);
    }
    tape.Backward(loss);
    step.loss = loss.value();
  }
  step.grad_x = x.grad();
  for (const Parameter& p : parameters) {
    step.grads.push_back(host.grad(p));
    step.contributions.push_back(host.contributions(p));
  }
  return step;
}

// Of f32 tensors, in L2 norm.
double RelativeError(const Tensor& got, const Tensor& want) {
  const Tensor difference = Tensor::Empty(got.device(), DType::kF32, got.shape());
  kernels::Copy(got, difference);
  kernels::Scale(want, -1.0, difference, kernels::Write::kAdd);
  return std::sqrt(kernels::SumSquares(difference) / kernels::SumSquares(want));
}

void WrapBlocks(LlamaStack& model, const CheckpointOptions& options) {
  for (auto& block : model.blocks()) Checkpoint(*block, options);
}

void ExpectSameStep(const WideStep& got, const WideStep& want) {
  EXPECT_TRUE(SameBits(got.loss, want.loss));
  EXPECT_TRUE(SameBits(got.grad_x, want.grad_x));
  EXPECT_EQ(got.contributions, want.contributions);
  ASSERT_EQ(got.grads.size(), want.grads.size());
  for (size_t i = 0; i < want.grads.size(); ++i) {
    ASSERT_TRUE(want.grads[i].defined());
    EXPECT_EQ(want.grads[i].dtype(), DType::kF32);
    EXPECT_TRUE(SameBits(got.grads[i], want.grads[i])) << "parameter " << i;
  }
}

TEST(WideGradients, CheckpointsChangeNoBit) {
  const std::function<void(LlamaStack&)> wrappers[] = {
      [](LlamaStack& model) { WrapBlocks(model, {}); },
      [](LlamaStack& model) { WrapBlocks(model, {.early_stop = false}); },
      [](LlamaStack& model) { WrapBlocks(model, {.policy = KeepMatmuls()}); },
      [](LlamaStack& model) {
        WrapBlocks(model, {});
        Checkpoint(model);
      },
  };
  for (int calls : {1, 2}) {
    const WideStep want = RunWide([](LlamaStack&) {}, calls);
    const WideStep wide = RunWide([](LlamaStack&) {}, calls, DType::kF32);
    for (size_t i = 0; i < wide.grads.size(); ++i) {
      EXPECT_EQ(want.contributions[i] % calls, 0);
      EXPECT_LT(RelativeError(want.grads[i], wide.grads[i]), 0.05) << "parameter " << i;
    }
    for (const auto& wrap : wrappers) ExpectSameStep(RunWide(wrap, calls), want);
  }
}

// Casts the arguments to bf16 and the result to f32, so that blocks in turn cast there and back.
class InBFloat16 final : public Interceptor {
 public:
  void Around(const CallContext& call) override {
    ProceedIn(call, {.arguments = DType::kBF16, .results = DType::kF32});
  }
};

TEST(WideGradients, CastsComposeWithCheckpointsInEveryOrder) {
  // Wraps blocks, innermost first: 'k' is a checkpoint, 'c' the casts.
  const auto wrap = [](const std::string& order, CheckpointOptions options) {
    return [order, options](LlamaStack& model) {
      for (auto& block : model.blocks()) {
        for (char wrapper : order) {
          if (wrapper == 'k') {
            Checkpoint(*block, options);
          } else {
            block->AddInterceptor(std::make_shared<InBFloat16>());
          }
        }
      }
    };
  };
  for (int calls : {1, 2}) {
    const WideStep want = RunWide(wrap("c", {}), calls);
    for (const char* order : {"kc", "ck", "kck", "ckc"}) {
      SCOPED_TRACE(order);
      ExpectSameStep(RunWide(wrap(order, {}), calls), want);
      ExpectSameStep(RunWide(wrap(order, {.early_stop = false}), calls), want);
      ExpectSameStep(RunWide(wrap(order, {.policy = KeepMatmuls()}), calls), want);
    }
  }
}

}  // namespace
}  // namespace sherd::testing
