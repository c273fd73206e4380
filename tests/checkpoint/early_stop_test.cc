// What a recompute leaves out, and that nothing it needs is left out.

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/transformer.h"
#include "tests/checkpoint/llama.h"

namespace sherd::testing {
namespace {

using Doubles = std::vector<double>;
using Body = std::function<Variable(const Variable&)>;

class EarlyStopTest : public ::testing::Test {
 protected:
  Variable Leaf(const Doubles& values, const Shape& shape) {
    return Variable::Leaf(TensorOf<double>(device_, values, shape));
  }
  Variable Leaf(const Doubles& values) {
    return Leaf(values, {static_cast<int64_t>(values.size())});
  }
  // Runs `body` plainly and checkpointed; expects the same bits of the value and of the gradient.
  // Returns how many ops were computed again.
  int64_t Repeated(const Body& body, const Variable& x, const KeepPolicy& policy = {}) {
    Tensor value, grad;
    auto stats = std::make_shared<CheckpointStats>();
    for (bool checkpointed : {false, true}) {
      x.ClearGrad();
      Tape tape;
      const Recording on(tape, {.seed = 9, .samples = {4, 7}});
      const Variable y =
          checkpointed ? Checkpoint({.policy = policy, .stats = stats}, body, x) : body(x);
      tape.Backward(Sum(Mul(y, y)));
      if (checkpointed) {
        EXPECT_TRUE(SameBits(y.value(), value));
        EXPECT_TRUE(SameBits(x.grad(), grad));
      } else {
        value = y.value();
        grad = x.grad();
      }
    }
    return stats->repeated_ops;
  }
  Device device_ = Device::Cpu();
  Tape tape_;
};

TEST_F(EarlyStopTest, ValuesTheProgramReadsAreComputedAgain) {
  const Variable x = Leaf({0.5, -1.5});
  // Nobody reads the sum but the program, which takes a factor from it.
  const auto by_data = [](const Variable& in) {
    const Variable sum = Sum(Scale(in, 3.0));
    return Scale(in, sum.value().data<double>()[0]);
  };
  EXPECT_EQ(Repeated(by_data, x), 2) << "the scale and the sum under the factor";
  const auto by_copy = [](const Variable& in) {
    const Variable scaled = Scale(in, 3.0);
    return Scale(in, scaled.value().ToHost<double>()[1]);
  };
  EXPECT_EQ(Repeated(by_copy, x), 1);
  const auto of_a_view = [](const Variable& in) {
    const Variable scaled = Scale(in, 3.0);
    return Scale(in, Slice(scaled, 0, 1, 2).value().data<double>()[0]);
  };
  EXPECT_EQ(Repeated(of_a_view, x), 1);
  const auto unread = [](const Variable& in) {
    const Variable scaled = Scale(in, 3.0);
    return Scale(in, 2.0);
  };
  EXPECT_EQ(Repeated(unread, x), 0);
}

TEST_F(EarlyStopTest, DetachedValuesAreTraced) {
  const Variable x = Leaf({0.5, -1.5});
  const auto body = [](const Variable& in) {
    const Variable factor = Silu(in).Detach();
    return Mul(in, factor);
  };
  // The product's backward reads the factor.
  EXPECT_EQ(Repeated(body, x), 1);
}

TEST_F(EarlyStopTest, ViewsOfSkippedValuesAreSkippedToo) {
  const Variable x = Leaf({1, 2, 3, 4}, {2, 2});
  const auto body = [](const Variable& in) {
    const Variable y = Reshape(Scale(in, 2.0), {4});
    return Add(Slice(y, 0, 0, 2), Slice(y, 0, 2, 4));
  };
  EXPECT_EQ(Repeated(body, x), 0);
  const auto one_is_read = [](const Variable& in) {
    const Variable y = Reshape(Scale(in, 2.0), {4});
    return Add(Silu(Slice(y, 0, 0, 2)), Slice(y, 0, 2, 4));
  };
  EXPECT_EQ(Repeated(one_is_read, x), 1) << "silu's backward reads the scale";
}

TEST_F(EarlyStopTest, OpsThatReadWhatTheyWroteAreComputed) {
  const Variable x = Leaf({1, 2, 3, 4}, {2, 2});
  const Variable weight = TensorOf<double>(device_, {0.5, 2.0}, {2});
  const auto norm = [weight](const Variable& in) { return RmsNorm(in, weight); };
  EXPECT_EQ(Repeated(norm, x), 1) << "an inner value";
  EXPECT_EQ(Repeated(norm, x, KeepAll()), 0);
  const Variable q = Leaf({1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 1, 2});
  const auto attention = [](const Variable& in) {
    return Attention(in, in, in, {.causal = true, .scale = 0.5});
  };
  EXPECT_EQ(Repeated(attention, q), 1) << "an inner value and its output";
  EXPECT_EQ(Repeated(attention, q, KeepMatmuls()), 0);
}

TEST_F(EarlyStopTest, SeveralOutputsPartlyUsed) {
  auto stats = std::make_shared<CheckpointStats>();
  const auto body = [](const Variable& in) {
    const Variable deep = Silu(Silu(in));
    return std::make_tuple(Silu(deep), Scale(in, 3.0), deep);
  };
  for (int used = 0; used < 3; ++used) {
    Tensor want;
    for (bool checkpointed : {false, true}) {
      const Variable x = Leaf({0.5, -1.5});
      Tape tape;
      const Recording on(tape);
      const auto ys = checkpointed ? Checkpoint({.stats = stats}, body, x) : body(x);
      const Variable y = used == 0   ? std::get<0>(ys)
                         : used == 1 ? std::get<1>(ys)
                                     : std::get<2>(ys);
      tape.Backward(Sum(y));
      if (checkpointed) {
        EXPECT_TRUE(SameBits(x.grad(), want)) << used;
      } else {
        want = x.grad();
      }
    }
  }
  EXPECT_EQ(stats->recomputes, 3);
  EXPECT_EQ(stats->repeated_ops, 3 * 2) << "the inner silus, whichever output is used";
}

TEST_F(EarlyStopTest, RandomOpsDrawTheSameNumbersAmongKeptAndSkippedOnes) {
  const Variable x = Leaf({1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  const auto body = [](const Variable& in) {
    const Variable a = Dropout(in, 0.5);         // computed: silu reads it
    const Variable b = Dropout(Silu(a), 0.4);    // skipped: an add reads it
    const Variable c = Dropout(Add(a, b), 0.3);  // computed: a product reads it
    return Dropout(Mul(c, Dropout(in, 0.2)), 0.5);
  };
  // dropout a, silu b (read by dropout b, read by add, read by dropout c): all but the last two.
  EXPECT_EQ(Repeated(body, x), 6);
  int kept = 0;
  for (int which = 0; which < 16; ++which) {
    const KeepPolicy policy = [which](const OpInfo& op) {
      return op.kind == OpKind::kRandom && (which >> op.ordinal % 4 & 1) != 0;
    };
    kept += Repeated(body, x, policy) < 6 ? 1 : 0;
  }
  EXPECT_GT(kept, 0);
  const auto skipped_before = [](const Variable& in) {
    const Variable unread = Dropout(in, 0.5);
    return Scale(Dropout(Silu(in), 0.5), 2.0);
  };
  EXPECT_EQ(Repeated(skipped_before, x), 0);
}

TEST_F(EarlyStopTest, AttentionWithDropoutIsKeptAsAttention) {
  const Variable x = Leaf({1, 2, 3, 4, 5, 6, 7, 8}, {2, 2, 1, 2});
  const auto body = [](const Variable& in) {
    const Variable y = Attention(in, in, in, {.causal = true, .scale = 0.5, .dropout = 0.5});
    return Mul(y, Dropout(y, 0.5));
  };
  EXPECT_EQ(Repeated(body, x), 2);
  EXPECT_EQ(Repeated(body, x, KeepMatmuls()), 1) << "the dropout behind it draws the same numbers";
  EXPECT_EQ(Repeated(body, x, KeepKinds({OpKind::kRandom})), 0);
}

TEST_F(EarlyStopTest, FrozenInputsAndIntegersInsideARegion) {
  const Variable frozen = TensorOf<double>(device_, {1, -2, 0.5, 3}, {2, 2});
  const Variable ids = TensorOf<int64_t>(device_, {1, 0}, {2});
  const Variable x = Leaf({1, 2, 3, 4}, {2, 2});
  const auto body = [frozen, ids](const Variable& in) {
    const Variable trunk = Silu(Linear(frozen, frozen));  // no gradient is wanted
    const Variable rows = EmbeddingLookup(ids, in);
    return Mul(rows, trunk);
  };
  // The product's backward reads the trunk, not the rows.
  EXPECT_EQ(Repeated(body, x), 2);
}

// Llama-like blocks with checkpoints on two levels.
TEST_F(EarlyStopTest, NestedCheckpointsWithPoliciesOnBothLevels) {
  const std::vector<KeepPolicy> policies = {{}, KeepMatmuls(), KeepAll()};
  for (const KeepPolicy& inner : policies) {
    for (const KeepPolicy& outer : policies) {
      for (bool twice : {false, true}) {
        ExpectSameBits(
            [&](LlamaStack& m) {
              Checkpoint(*m.blocks()[0], {.policy = inner});
              Checkpoint(*m.blocks()[2], {.policy = inner});
              Checkpoint(m, {.policy = outer});
            },
            {.calls = 2, .twice = twice});
      }
    }
  }
}

TEST_F(EarlyStopTest, NestedCountsOfRepeatedOps) {
  LlamaStack model(device_, DType::kF64, 2);
  auto inner = std::make_shared<CheckpointStats>();
  auto outer = std::make_shared<CheckpointStats>();
  for (auto& block : model.blocks()) {
    Checkpoint(*block, {.policy = KeepMatmuls(), .stats = inner});
  }
  Checkpoint(model, {.stats = outer});
  RunStep(model, device_, DType::kF64);
  EXPECT_EQ(outer->ops, 2) << "a checkpoint inside is one op";
  EXPECT_EQ(outer->repeated_ops, 2);
  // Once whole in the outer recompute, once without products in their own.
  EXPECT_EQ(inner->calls, 2);
  EXPECT_EQ(inner->repeated_ops, 2 * (14 + 7));
  EXPECT_EQ(inner->kept_ops, 2 * 4);
  std::printf("two levels: outer %s\n            inner %s\n", outer->ToString().c_str(),
              inner->ToString().c_str());
}

TEST_F(EarlyStopTest, RegionManyTimesBeforeOneBackward) {
  for (int calls : {2, 5}) {
    ExpectSameBits([](LlamaStack& m) { Checkpoint(*m.blocks()[1], {.policy = KeepMatmuls()}); },
                   {.calls = calls});
  }
}

TEST_F(EarlyStopTest, ReadingASkippedValueNamesOpAndRegion) {
  const Variable x = Leaf({1, 2});
  const auto runs = std::make_shared<int>(0);
  const Recording on(tape_);
  const Variable y = Checkpoint(
      [runs](const Variable& in) {
        const Variable hidden = Scale(in, 2.0);
        // Only the second run looks: the first could not tell.
        if ((*runs)++ == 1) hidden.value().data<double>();
        return Scale(hidden, 3.0);
      },
      x);
  const std::string error = ErrorOf([&] { tape_.Backward(Sum(y)); });
  EXPECT_TRUE(Contains(error, "the output of 'scale' in a checkpointed function"));
  EXPECT_TRUE(Contains(error, "early_stop = false"));
  EXPECT_FALSE(x.grad().defined());
}

TEST_F(EarlyStopTest, WithoutItTheSameBodyMayLook) {
  const Variable x = Leaf({1, 2});
  const auto runs = std::make_shared<int>(0);
  const Recording on(tape_);
  const Variable y = Checkpoint(
      CheckpointOptions{.early_stop = false},
      [runs](const Variable& in) {
        const Variable hidden = Scale(in, 2.0);
        if ((*runs)++ == 1) {
          EXPECT_EQ(hidden.value().data<double>()[1], 4.0);
        }
        return Scale(hidden, 3.0);
      },
      x);
  tape_.Backward(Sum(y));
  EXPECT_EQ(x.grad().ToHost<double>(), (Doubles{6, 6}));
}

// A value given up by the first pass may leave its address to another; who wrote what must not be
// mixed up.
TEST_F(EarlyStopTest, AddressesThatAreUsedAgain) {
  const Variable x = Leaf(Doubles(64, 0.25));
  const auto body = [](const Variable& in) {
    Variable y = in;
    for (int i = 0; i < 40; ++i) {
      y = i % 3 == 0 ? Scale(y, 1.01) : i % 3 == 1 ? Silu(y) : Mul(y, y.Detach());
    }
    return y;
  };
  const int64_t repeated = Repeated(body, x);
  // Every op but the last scale and the product under it, which no backward reads.
  EXPECT_EQ(repeated, 38);
}

}  // namespace
}  // namespace sherd::testing
