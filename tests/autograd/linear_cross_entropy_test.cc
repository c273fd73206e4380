// Cross-entropy of a linear head in chunks of classes: the values and gradients of the two ops, and
// never the logits as a whole.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sherd/autograd/gradcheck.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/loss/cross_entropy.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

struct Outcome {
  double loss = 0.0;
  int64_t items = 0;
  std::vector<double> grad_hidden, grad_weight;
};

std::vector<double> Wide(const Tensor& x) {
  if (!x.defined()) return {};
  const Tensor wide = Tensor::Empty(x.device(), DType::kF64, x.shape());
  kernels::Cast(x, wide);
  return wide.ToHost<double>();
}

double RelativeError(const std::vector<double>& a, const std::vector<double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return error == 0.0 ? 0.0 : std::sqrt(error / norm);
}

class LinearCrossEntropyTest : public ::testing::Test {
 protected:
  Tensor Rounded(DType dtype, const Shape& shape, uint64_t seed, double scale) {
    const Tensor exact = NormalTensor(device_, DType::kF64, shape, seed, scale);
    const Tensor x = Tensor::Empty(device_, dtype, shape);
    kernels::Cast(exact, x);
    return x;
  }

  // Both gradients are added to what an earlier backward left.
  template <typename Fn>
  Outcome Compute(DType dtype, bool train_hidden, bool train_weight, const Fn& loss) {
    const auto leaf = [](const Tensor& x, bool train) {
      return train ? Variable::Leaf(x) : Variable(x);
    };
    const Variable hidden = leaf(Rounded(dtype, {2, 9, 12}, 1, 1.0), train_hidden);
    const Variable weight = leaf(Rounded(dtype, {101, 12}, 2, 0.5), train_weight);
    std::vector<int64_t> ids(18);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = i % 5 == 3 ? -100 : static_cast<int64_t>(i * 37 % 101);
    }
    const Tensor labels = TensorOf<int64_t>(device_, ids, {2, 9});
    Outcome run;
    for (int times = 0; times < 2; ++times) {
      Tape tape;
      const Recording on(tape);
      const LossSum sum = loss(hidden, weight, labels);
      run.loss = *sum.value.value().template data<double>();
      run.items = sum.items;
      tape.Backward(sum.value, 0.25);
    }
    run.grad_hidden = Wide(hidden.grad());
    run.grad_weight = Wide(weight.grad());
    return run;
  }

  const Device device_ = Device::Cpu();
};

TEST_F(LinearCrossEntropyTest, EqualsTheTwoOpsForAnyChunkAndFrozenOperand) {
  const kernels::CrossEntropyOptions options = {.label_smoothing = 0.1, .z_loss = 0.01};
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    const double bound = dtype == DType::kF64 ? 1e-14 : dtype == DType::kF32 ? 1e-6 : 1e-2;
    double worst = 0.0;
    for (const auto& [hidden, weight] : {std::pair{true, true}, {true, false}, {false, true}}) {
      const Outcome want =
          Compute(dtype, hidden, weight, [&](const auto& h, const auto& w, const auto& labels) {
            return CrossEntropy(Linear(h, w), labels, options);
          });
      for (int64_t chunk : {0, 1, 16, 100, 101, 500}) {
        const Outcome got =
            Compute(dtype, hidden, weight, [&](const auto& h, const auto& w, const auto& labels) {
              return LinearCrossEntropy(h, w, labels, {options, chunk});
            });
        EXPECT_EQ(got.items, want.items);
        worst = std::max(worst, std::abs(got.loss / want.loss - 1.0));
        worst = std::max(worst, RelativeError(got.grad_hidden, want.grad_hidden));
        worst = std::max(worst, RelativeError(got.grad_weight, want.grad_weight));
      }
    }
    std::printf("%s worst error %.1e\n", std::string(NameOf(dtype)).c_str(), worst);
    EXPECT_LT(worst, bound);
  }
}

TEST_F(LinearCrossEntropyTest, CentralDifferencesAgree) {
  const Tensor labels = TensorOf<int32_t>(device_, {3, -100, 0}, {3});
  const std::vector<Tensor> inputs = {NormalTensor(device_, DType::kF64, {3, 4}, 1),
                                      NormalTensor(device_, DType::kF64, {7, 4}, 2)};
  const GradCheckResult result = GradCheck(
      [&](std::span<const Variable> in) {
        return LinearCrossEntropy(
                   in[0], in[1], labels,
                   {.cross_entropy = {.label_smoothing = 0.2, .z_loss = 0.05}, .chunk_classes = 3})
            .value;
      },
      inputs);
  EXPECT_LT(result.worst_error, 1e-7) << result.worst;
}

TEST_F(LinearCrossEntropyTest, OneVariableMayBeBothOperands) {
  const Tensor labels = TensorOf<int64_t>(device_, {3, 1, 0, 2}, {4});
  const std::vector<Tensor> inputs = {NormalTensor(device_, DType::kF64, {4, 3}, 1)};
  const GradCheckResult result = GradCheck(
      [&](std::span<const Variable> in) {
        return LinearCrossEntropy(in[0], in[0], labels, {.chunk_classes = 3}).value;
      },
      inputs);
  EXPECT_LT(result.worst_error, 1e-7) << result.worst;
}

TEST_F(LinearCrossEntropyTest, NeverHoldsMoreThanTheHeaderSays) {
  constexpr int64_t kN = 256, kC = 64, kV = 32768, kChunk = 128;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    const Variable hidden = Variable::Leaf(Rounded(dtype, {kN, kC}, 1, 1.0));
    const Variable weight = Variable::Leaf(Rounded(dtype, {kV, kC}, 2, 0.1));
    const Tensor labels = TensorOf<int64_t>(device_, std::vector<int64_t>(kN, 5), {kN});
    const int64_t bytes = SizeOf(dtype), logits = kN * kChunk * bytes;
    const auto total = [&] { return device_.allocator().stats().total; };
    for (int times = 0; times < 2; ++times) {  // the second time, primitives exist
      hidden.ClearGrad();
      weight.ClearGrad();
      Tape tape;
      const Recording on(tape);
      device_.allocator().ResetPeaks();
      const int64_t before = total().current_bytes;
      const LossSum sum = LinearCrossEntropy(hidden, weight, labels, {{}, kChunk});
      const int64_t forward = total().peak_bytes - before;
      device_.allocator().ResetPeaks();
      const int64_t between = total().current_bytes;
      tape.Backward(sum.value);
      const int64_t grads = (kN * kC + kV * kC) * bytes;
      const int64_t backward = total().peak_bytes - between - grads;
      if (times == 0) continue;
      std::printf("%s forward %lld of %lld, backward %lld of %lld, logits %lld\n",
                  std::string(NameOf(dtype)).c_str(), static_cast<long long>(forward),
                  static_cast<long long>(logits + 4 * kN), static_cast<long long>(backward),
                  static_cast<long long>(logits + (bytes == 2 ? 4 * kN * kC : 0)),
                  static_cast<long long>(kN * kV * bytes));
      // Scalars, the workspace of Matmul and the rounding of sizes.
      constexpr int64_t kSlack = 1 << 20;
      EXPECT_LE(forward, logits + 4 * kN + kSlack);
      EXPECT_LE(backward, logits + (bytes == 2 ? 4 * kN * kC : 0) + kSlack);
    }
  }
}

TEST_F(LinearCrossEntropyTest, CausalLossTakesHiddenStates) {
  const CausalLmLoss loss({.labels = LabelMode::kShiftInside, .label_smoothing = 0.1});
  const Variable hidden = NormalTensor(device_, DType::kF64, {2, 4, 3}, 1);
  const Variable weight = NormalTensor(device_, DType::kF64, {10, 3}, 2);
  LossLabels labels = TensorOf<int64_t>(device_, {1, 2, 3, 4, 5, 6, 7, 8}, {2, 4});
  labels.position_ids = TensorOf<int64_t>(device_, {0, 1, 0, 1, 0, 1, 2, 3}, {2, 4});
  const LossSum got = loss.FromHidden(hidden, weight, labels, 4);
  const LossSum want = loss(Linear(hidden, weight), labels);
  EXPECT_EQ(got.items, 5);
  EXPECT_EQ(want.items, 5);
  EXPECT_NEAR(*got.value.value().data<double>(), *want.value.value().data<double>(), 1e-13);
}

TEST_F(LinearCrossEntropyTest, NamesOperandsThatDoNotFit) {
  const Variable hidden = NormalTensor(device_, DType::kF64, {2, 3}, 1);
  const Variable weight = NormalTensor(device_, DType::kF64, {5, 4}, 1);
  const Tensor labels = TensorOf<int64_t>(device_, {0, 1}, {2});
  const std::string shapes = ErrorOf([&] { LinearCrossEntropy(hidden, weight, labels); });
  EXPECT_TRUE(Contains(shapes, "[linear_cross_entropy]"));
  EXPECT_TRUE(Contains(shapes, "hidden is f64 [2, 3]"));
  EXPECT_TRUE(Contains(shapes, "weight is f64 [5, 4]"));
  const Variable fits = NormalTensor(device_, DType::kF64, {5, 3}, 1);
  EXPECT_TRUE(Contains(
      ErrorOf([&] { LinearCrossEntropy(hidden, fits, TensorOf<int64_t>(device_, {0}, {1})); }),
      "labels is i64 [1]"));
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         LinearCrossEntropy(hidden, fits, TensorOf<int64_t>(device_, {0, 5}, {2}));
                       }),
                       "target 5 at index 1 is outside [0, 5)"));
  EXPECT_TRUE(
      Contains(ErrorOf([&] { LinearCrossEntropy(hidden, fits, labels, {.chunk_classes = -1}); }),
               "chunk_classes is negative"));
  EXPECT_TRUE(Contains(ErrorOf([&] { CrossEntropy(hidden, labels, {.label_smoothing = 1.5}); }),
                       "[0, 1], got 1.5"));
}

}  // namespace
}  // namespace sherd::testing
