// A checkpointed model gives the same bits as the plain one, for less memory.

#include "sherd/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/ops/transformer.h"
#include "sherd/runtime/core/allocator.h"
#include "tests/checkpoint/model.h"

namespace sherd::testing {
namespace {

class CheckpointTest : public ::testing::Test {
 protected:
  Variable Ids() { return TensorOf<int64_t>(device_, {3, 1, 3, 6}, {4}); }
  Variable Leaf(const std::vector<double>& values) {
    return Variable::Leaf(TensorOf<double>(device_, values, {static_cast<int64_t>(values.size())}));
  }
  int64_t Activations() const {
    return device_.allocator().stats()[MemoryCategory::kActivation].current_bytes;
  }
  int64_t Peak() const {
    return device_.allocator().stats()[MemoryCategory::kActivation].peak_bytes;
  }

  // Runs `calls` forwards, one backward of their sum; the gradients of all parameters.
  std::vector<Tensor> Gradients(Stack& model, int calls = 1) {
    Initialize(model, device_, 3);
    {
      const Recording on(tape_, {.seed = 5, .step = 1, .samples = {20, 21, 22, 23}});
      Variable total;
      for (int i = 0; i < calls; ++i) {
        const Variable y = Scale(Sum(Mul(model(Ids()), model(Ids()))), 1.0 + i);
        total = i == 0 ? y : Add(total, y);
      }
      tape_.Backward(total);
    }
    tape_.Reset();
    std::vector<Tensor> gradients;
    for (const Parameter& parameter : model.parameters())
      gradients.push_back(parameter.local_grad());
    return gradients;
  }

  void ExpectSameBitsAsPlain(DType dtype, int blocks, int repeats, int calls,
                             const std::function<void(Stack&)>& wrap) {
    Stack plain(dtype, blocks, repeats);
    Stack wrapped(dtype, blocks, repeats);
    wrap(wrapped);
    const std::vector<Tensor> want = Gradients(plain, calls);
    const std::vector<Tensor> got = Gradients(wrapped, calls);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_TRUE(want[i].defined());
      EXPECT_TRUE(SameBits(got[i], want[i]))
          << plain.parameters()[i].name() << " in " << NameOf(dtype);
    }
    EXPECT_EQ(plain.block(0).runs * 2, wrapped.block(0).runs)
        << "the first block was not recomputed";
  }

  Device device_ = Device::Cpu();
  Tape tape_;
};

using Doubles = std::vector<double>;

TEST_F(CheckpointTest, GradientsHaveTheSameBits) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    ExpectSameBitsAsPlain(dtype, 3, 1, 1, [](Stack& s) {
      for (int i = 0; i < 3; ++i) Checkpoint(s.block(i));
    });
  }
}

TEST_F(CheckpointTest, ModuleCalledManyTimesBeforeOneBackward) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    ExpectSameBitsAsPlain(dtype, 2, 3, 2, [](Stack& s) {
      for (int i = 0; i < 2; ++i) Checkpoint(s.block(i));
    });
  }
}

TEST_F(CheckpointTest, OnlySomeModules) {
  ExpectSameBitsAsPlain(DType::kF64, 3, 2, 1, [](Stack& s) { Checkpoint(s.block(0)); });
}

TEST_F(CheckpointTest, InputsThatNeedNoGradient) {
  // Token ids come in; the whole model is one region.
  ExpectSameBitsAsPlain(DType::kF64, 2, 1, 2, [](Stack& s) { Checkpoint(s); });
}

TEST_F(CheckpointTest, NestedCheckpoints) {
  Stack plain(DType::kF64, 2, 2);
  Stack nested(DType::kF64, 2, 2);
  Checkpoint(nested.block(0));
  Checkpoint(nested.block(1));
  Checkpoint(nested);
  const std::vector<Tensor> want = Gradients(plain);
  const std::vector<Tensor> got = Gradients(nested);
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_TRUE(SameBits(got[i], want[i])) << plain.parameters()[i].name();
  // Once in the forward, once for the outer region's recompute, once for its own.
  EXPECT_EQ(nested.block(0).runs, plain.block(0).runs * 3);
}

TEST_F(CheckpointTest, TwiceOnOneModuleIsNestedToo) {
  Stack plain(DType::kF64, 1, 1);
  Stack twice(DType::kF64, 1, 1);
  Checkpoint(Checkpoint(twice.block(0)));
  const std::vector<Tensor> want = Gradients(plain);
  const std::vector<Tensor> got = Gradients(twice);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(SameBits(got[i], want[i]));
}

TEST_F(CheckpointTest, NothingIsCheckpointedWithoutARecording) {
  Stack model(DType::kF64, 1, 1);
  Checkpoint(model.block(0));
  Initialize(model, device_, 3);
  EXPECT_FALSE(model(Ids()).requires_grad());
  EXPECT_EQ(model.block(0).runs, 1);
}

TEST_F(CheckpointTest, CheckpointTheLossDoesNotDependOnIsNotRecomputed) {
  Stack model(DType::kF64, 2, 1);
  Checkpoint(model.block(0));
  Initialize(model, device_, 3);
  const Recording on(tape_, {.samples = {0, 1, 2, 3}});
  const Variable x = model.embedding()(Ids());
  model.block(0)(x);
  tape_.Backward(Sum(x));
  EXPECT_EQ(model.block(0).runs, 1);
}

struct Options {
  double factor = 1.0;
  std::string name;
};

TEST_F(CheckpointTest, FunctionWithCapturesIntegersAndStructs) {
  const Variable x = Leaf({1, 2});
  const Variable w = Leaf({3, 5});
  int runs = 0;
  {
    const Recording on(tape_);
    Variable y;
    {
      // Everything the function reads is gone when backward runs it again.
      auto run = [w, scale = 2.0, &runs](const Variable& in, int times, const Options& options) {
        ++runs;
        Variable out = in;
        for (int i = 0; i < times; ++i) out = Scale(Mul(out, w), scale * options.factor);
        return out;
      };
      y = Checkpoint(run, x, 2, Options{0.5, "half"});
    }
    tape_.Backward(Sum(y));
  }
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(x.grad().ToHost<double>(), (Doubles{9, 25}));
  EXPECT_EQ(w.grad().ToHost<double>(), (Doubles{6, 20}));
}

TEST_F(CheckpointTest, SeveralOutputsSomeUnusedSomeNoTensors) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  auto run = [](const Variable& in) {
    return std::make_tuple(Scale(in, 2.0), 17,
                           std::vector<Variable>{Scale(in, 3.0), Scale(in, 4.0)},
                           std::optional<Variable>());
  };
  const auto [a, number, list, none] = Checkpoint(run, x);
  EXPECT_EQ(number, 17);
  EXPECT_FALSE(none.has_value());
  tape_.Backward(Add(Sum(a), Sum(list[1])));
  EXPECT_EQ(x.grad().ToHost<double>(), (Doubles{6, 6}));
}

TEST_F(CheckpointTest, InputReturnedAsItselfIsItself) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  const Variable mid = Scale(x, 10.0);
  const auto [same, more] =
      Checkpoint([](const Variable& in) { return std::make_pair(in, Scale(in, 2.0)); }, mid);
  EXPECT_EQ(same.ident(), mid.ident());
  tape_.Backward(Sum(Add(same, more)));
  EXPECT_EQ(x.grad().ToHost<double>(), (Doubles{30, 30}));
}

TEST_F(CheckpointTest, VariableReturnedTwiceIsOneVariable) {
  const Variable x = Leaf({1, 2});
  const Recording on(tape_);
  const auto [a, b] = Checkpoint(
      [](const Variable& in) {
        const Variable y = Scale(in, 2.0);
        return std::make_pair(y, y);
      },
      x);
  EXPECT_EQ(a.ident(), b.ident());
  tape_.Backward(Sum(Mul(a, b)));
  EXPECT_EQ(x.grad().ToHost<double>(), (Doubles{8, 16}));
}

TEST_F(CheckpointTest, FunctionMayReturnALoss) {
  const Variable logits = Variable::Leaf(NormalTensor(device_, DType::kF64, {2, 3}, 1));
  const Tensor labels = TensorOf<int64_t>(device_, {2, 0}, {2});
  const CausalLmLoss loss;
  Tensor plain;
  for (bool checkpointed : {false, true}) {
    const Recording on(tape_);
    const LossSum sum =
        checkpointed
            ? Checkpoint(
                  [loss, labels](const Variable& in) { return loss(Scale(in, 2.0), labels); },
                  logits)
            : loss(Scale(logits, 2.0), labels);
    EXPECT_EQ(sum.items, 2);
    tape_.Backward(sum.value);
    tape_.Reset();
    if (checkpointed) {
      EXPECT_TRUE(SameBits(logits.grad(), plain));
    } else {
      plain = logits.grad();
    }
    logits.ClearGrad();
  }
}

TEST_F(CheckpointTest, ResultThatIsAParameterStaysTheParameter) {
  Stack model(DType::kF64, 1, 1);
  Initialize(model, device_, 3);
  const Recording on(tape_);
  const Parameter table = model.parameters()[0];
  const Variable same = Checkpoint([table](int) { return table.variable(); }, 1);
  tape_.Backward(Sum(same));
  EXPECT_EQ(table.local_grad().ToHost<double>(), Doubles(static_cast<size_t>(table.numel()), 1.0));
}

// Op outputs and inner values that a plain chain of n silus keeps, and a checkpointed one does not.
TEST_F(CheckpointTest, PeakIsLowerByWhatTheRegionsSave) {
  constexpr int64_t kElems = 4096;
  constexpr int kRegions = 4;
  constexpr int kOps = 5;  // of each region
  const int64_t one = kElems * 8;
  const auto chain = [](const Variable& in) {
    Variable y = in;
    for (int i = 0; i < kOps; ++i) y = Silu(y);
    return y;
  };
  std::vector<int64_t> peaks;
  for (bool checkpointed : {false, true}) {
    const Variable x = Leaf(Doubles(kElems, 0.5));
    const int64_t before = Activations();
    device_.allocator().ResetPeaks();
    {
      const Recording on(tape_);
      Variable y = x;
      for (int i = 0; i < kRegions; ++i) y = checkpointed ? Checkpoint(chain, y) : chain(y);
      tape_.Backward(Sum(y));
    }
    peaks.push_back(Peak() - before);
    tape_.Reset();
    x.ClearGrad();
    EXPECT_EQ(Activations(), before) << "nothing stays after backward and reset";
  }
  // Plain: every output until the walk reaches it, the last one beside its gradient and the next
  // gradient.
  const int64_t slack = 1024;
  EXPECT_LE(std::abs(peaks[0] - (kRegions * kOps + 2) * one), slack + one) << peaks[0] / one;
  // Checkpointed: the outputs of the regions, those of one region's recompute, two gradients.
  EXPECT_LE(peaks[1], (kRegions + kOps + 2) * one + slack) << peaks[1] / one;
}

TEST_F(CheckpointTest, ForwardKeepsOnlyTheArgumentsOfARegion) {
  constexpr int64_t kElems = 4096;
  const Variable x = Leaf(Doubles(kElems, 0.5));
  const int64_t before = Activations();
  const Recording on(tape_);
  const Variable y = Checkpoint([](const Variable& in) { return Silu(Silu(Silu(in))); }, x);
  EXPECT_EQ(Activations(), before + y.value().bytes());
}

// Counted by the allocator: of what a policy asked for, only what somebody will read stays.
TEST_F(CheckpointTest, ForwardKeepsOnlyWhatSomebodyWillRead) {
  constexpr int64_t kElems = 4096;
  const Variable x = Variable::Leaf(NormalTensor(device_, DType::kF64, {64, kElems / 64}, 1));
  const Variable weight = Variable(NormalTensor(device_, DType::kF64, {kElems / 64}, 2));
  auto stats = std::make_shared<CheckpointStats>();
  const auto held = [&](const auto& body) {
    const int64_t before = Activations();
    const Recording on(tape_);
    const Variable y = Checkpoint({.policy = KeepAll(), .stats = stats}, body, x);
    const int64_t more = Activations() - before - y.value().bytes();
    EXPECT_EQ(more, stats->kept_bytes);
    tape_.Reset();
    EXPECT_EQ(Activations(), before + y.value().bytes());
    return more;
  };
  // Nobody reads the scales.
  EXPECT_EQ(held([](const Variable& in) { return Scale(Scale(in, 2.0), 3.0); }), 0);
  // The second silu reads the first one's result.
  EXPECT_EQ(held([](const Variable& in) { return Silu(Silu(in)); }), kElems * 8);
  // A norm of constants that nobody reads.
  EXPECT_EQ(held([weight](const Variable& in) {
              RmsNorm(in.Detach(), weight);
              return Scale(in, 2.0);
            }),
            0);
  // Of a norm only the inner values, one a row: its result goes to a scale, which nobody reads.
  EXPECT_EQ(held([weight](const Variable& in) { return Scale(RmsNorm(in, weight), 2.0); }), 64 * 8);
}

}  // namespace
}  // namespace sherd::testing
