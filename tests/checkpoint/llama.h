#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sherd/autograd/call.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "tests/support/grid_model.h"
#include "tests/support/tensors.h"

namespace sherd::testing {

// Llama-like blocks, one after another: attention with grouped queries and a gated unit, each with
// a norm, dropout and a residual.
//
// Ops of one block, views left out (14): norm, qkv, rope, rope, attention, out, dropout, add; norm,
// gate_up, silu_mul, down, dropout, add.
class LlamaStack : public Module {
 public:
  LlamaStack(const Device& device, DType dtype, int blocks) {
    auto tables = std::make_shared<const kernels::RopeTables>(
        kernels::MakeRopeTables(device, dtype, GridModel::kTokens, 2));
    for (int i = 0; i < blocks; ++i) {
      blocks_.push_back(std::make_unique<GridBlock>(dtype, tables));
      RegisterModule("block" + std::to_string(i), *blocks_.back());
    }
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](LlamaStack& self, const Variable& x) {
          Variable y = x;
          for (auto& block : self.blocks_) y = (*block)(y);
          return y;
        },
        x);
  }
  std::vector<std::unique_ptr<GridBlock>>& blocks() { return blocks_; }

 private:
  std::vector<std::unique_ptr<GridBlock>> blocks_;
};

// What a step computed: the loss, the gradient of the input, those of the parameters.
struct StepValues {
  Tensor loss;
  Tensor grad_x;
  std::vector<Tensor> grads;
};

struct StepOptions {
  int64_t batch = 2;
  int64_t tokens = GridModel::kTokens;
  int calls = 1;       // of the model before the backward
  bool twice = false;  // two backwards over one record
  std::function<void()> after_forward;
};

// One step of `model` on the same input every time.
inline StepValues RunStep(LlamaStack& model, const Device& device, DType dtype,
                          const StepOptions& options = {}) {
  Initialize(model, device, 3);
  for (const Parameter& p : model.parameters()) p.ClearGrad();
  StepValues values;
  std::vector<int64_t> samples;
  for (int64_t i = 0; i < options.batch; ++i) samples.push_back(20 + i);
  const Variable x = Variable::Leaf(
      NormalTensor(device, dtype, {options.batch, options.tokens, GridBlock::kChannels}, 17));
  Tape tape;
  {
    const Recording on(tape, {.seed = 5, .step = 2, .samples = samples});
    Variable loss;
    for (int i = 0; i < options.calls; ++i) {
      const Variable y = model(x);
      const Variable energy = Scale(Sum(Mul(y, y)), 0.5 + i);
      loss = i == 0 ? energy : Add(loss, energy);
    }
    if (options.after_forward) options.after_forward();
    if (options.twice) tape.Backward(loss, 1.0, {.retain = true});
    tape.Backward(loss);
    values.loss = loss.value();
  }
  values.grad_x = x.grad();
  for (const Parameter& p : model.parameters()) values.grads.push_back(p.local_grad());
  return values;
}

inline void ExpectSameValues(const StepValues& got, const StepValues& want) {
  EXPECT_TRUE(SameBits(got.loss, want.loss)) << "loss";
  EXPECT_TRUE(SameBits(got.grad_x, want.grad_x)) << "gradient of the input";
  ASSERT_EQ(got.grads.size(), want.grads.size());
  for (size_t i = 0; i < want.grads.size(); ++i) {
    ASSERT_TRUE(want.grads[i].defined());
    EXPECT_TRUE(SameBits(got.grads[i], want.grads[i])) << "parameter " << i;
  }
}

// Runs a step of a plain and of a wrapped model in f32 and f64, and expects the same bits.
inline void ExpectSameBits(const std::function<void(LlamaStack&)>& wrap,
                           const StepOptions& options = {}, int blocks = 3) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    SCOPED_TRACE(std::string(NameOf(dtype)));
    const Device device = Device::Cpu();
    LlamaStack plain(device, dtype, blocks);
    LlamaStack wrapped(device, dtype, blocks);
    wrap(wrapped);
    const StepValues want = RunStep(plain, device, dtype, options);
    ExpectSameValues(RunStep(wrapped, device, dtype, options), want);
  }
}

}  // namespace sherd::testing
