// Values of ops, computed by hand or by loops that share nothing with the kernels; gradients that
// differences cannot check: casts and dropout.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"
#include "sherd/autograd/tape.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

Variable F64(const std::vector<double>& values, const Shape& shape) {
  return TensorOf<double>(Cpu(), values, shape);
}

void ExpectValues(const Variable& got, const std::vector<double>& want, double tolerance = 1e-12) {
  const std::vector<double> values = got.value().ToHost<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(values[i], want[i], tolerance) << "element " << i;
}

TEST(OpValues, ElementwiseByHand) {
  const Variable a = F64({1, -2, 3}, {3});
  const Variable b = F64({4, 5, -6}, {3});
  ExpectValues(Add(a, b), {5, 3, -3});
  ExpectValues(Mul(a, b), {4, -10, -18});
  ExpectValues(Scale(a, -0.5), {-0.5, 1, -1.5});
  const double silu_1 = 1 / (1 + std::exp(-1.0));
  const double silu_m2 = -2 / (1 + std::exp(2.0));
  const double silu_3 = 3 / (1 + std::exp(-3.0));
  ExpectValues(Silu(a), {silu_1, silu_m2, silu_3});
  ExpectValues(SiluMul(a, b), {4 * silu_1, 5 * silu_m2, -6 * silu_3});
  ExpectValues(Sum(a), {2});
}

TEST(OpValues, MatricesByHand) {
  const Variable a = F64({1, 2, 3, 4, 5, 6}, {2, 3});
  const Variable b = F64({1, 0, 2, -1, 1, 1}, {2, 3});
  ExpectValues(Linear(a, b), {7, 4, 16, 7});
  ExpectValues(Matmul(a, b, {.transpose_b = true}), {7, 4, 16, 7});
  ExpectValues(Matmul(a, b, {.transpose_a = true}), {-3, 4, 6, -3, 5, 9, -3, 6, 12});
  ExpectValues(Matmul(a, F64({1, -1, 2}, {3, 1})), {5, 11});
}

TEST(OpValues, ShapesByHand) {
  const Variable x = F64({1, 2, 3, 4, 5, 6}, {2, 3});
  ExpectValues(Reshape(x, {3, 2}), {1, 2, 3, 4, 5, 6});
  ExpectValues(Slice(x, 1, 1, 3), {2, 3, 5, 6});
  const std::vector<Variable> parts = Split(x, 1, std::array<int64_t, 2>{1, 2});
  ExpectValues(parts[0], {1, 4});
  ExpectValues(parts[1], {2, 3, 5, 6});
  ExpectValues(Concat(std::array{parts[1], parts[0]}, 1), {2, 3, 1, 5, 6, 4});
  const Variable table = F64({1, 2, 3, 4, 5, 6}, {3, 2});
  ExpectValues(EmbeddingLookup(TensorOf<int32_t>(Cpu(), {2, 0, 2}, {3}), table),
               {5, 6, 1, 2, 5, 6});
}

TEST(OpValues, RmsNormByHand) {
  // mean square of (3, 4) is 12.5; with eps 3.5 the root is 4.
  ExpectValues(RmsNorm(F64({3, 4}, {1, 2}), F64({2, -1}, {2}), 3.5), {1.5, -1});
}

TEST(OpValues, RopeTurnsPairsByTheAngleOfThePosition) {
  const int64_t head_size = 4;
  const Variable x = NormalTensor(Cpu(), DType::kF64, {2, 3, 2, head_size}, 1);
  const std::vector<double> in = x.value().ToHost<double>();
  std::vector<double> want(in.size());
  for (size_t row = 0; row < 12; ++row) {
    const double position = 5 + static_cast<double>(row / 2 % 3);
    for (size_t i = 0; i < 2; ++i) {
      const double angle = position * std::pow(10000.0, -2.0 * static_cast<double>(i) / 4.0);
      const double a = in[row * 4 + i];
      const double b = in[row * 4 + i + 2];
      want[row * 4 + i] = a * std::cos(angle) - b * std::sin(angle);
      want[row * 4 + i + 2] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  ExpectValues(Rope(x, kernels::MakeRopeTables(Cpu(), DType::kF64, 8, head_size), 5), want);
}

TEST(OpValues, AttentionIsASoftmaxOfScores) {
  constexpr int64_t kT = 3, kHeads = 4, kKeyHeads = 2, kD = 2;
  const Tensor q = NormalTensor(Cpu(), DType::kF64, {1, kT, kHeads, kD}, 1);
  const Tensor k = NormalTensor(Cpu(), DType::kF64, {1, kT, kKeyHeads, kD}, 2);
  const Tensor v = NormalTensor(Cpu(), DType::kF64, {1, kT, kKeyHeads, kD}, 3);
  const auto at = [](const Tensor& x, int64_t t, int64_t h, int64_t d) {
    return x.data<double>()[(t * x.dim(2) + h) * kD + d];
  };
  for (bool causal : {true, false}) {
    std::vector<double> want;
    for (int64_t t = 0; t < kT; ++t) {
      for (int64_t h = 0; h < kHeads; ++h) {
        double total = 0.0;
        std::array<double, kD> mixed = {};
        for (int64_t s = 0; s < (causal ? t + 1 : kT); ++s) {
          double score = 0.0;
          for (int64_t d = 0; d < kD; ++d) score += at(q, t, h, d) * at(k, s, h / 2, d);
          const double weight = std::exp(0.3 * score);
          total += weight;
          for (int64_t d = 0; d < kD; ++d)
            mixed[static_cast<size_t>(d)] += weight * at(v, s, h / 2, d);
        }
        for (double sum : mixed) want.push_back(sum / total);
      }
    }
    ExpectValues(Attention(q, k, v, {.causal = causal, .scale = 0.3}), want);
  }
}

TEST(OpValues, CausalLmLossSumsLabelledRowsAndCountsThem) {
  const Variable logits = F64({0, 1, 2, 3, 0, 0, -1, 5, 2}, {3, 3});
  const Tensor labels = TensorOf<int64_t>(Cpu(), {2, -100, 0}, {3});
  const CausalLmLoss loss;
  const LossSum sum = loss(logits, labels);
  const double first = std::log(std::exp(0.0) + std::exp(1.0) + std::exp(2.0)) - 2.0;
  const double third = std::log(std::exp(-1.0) + std::exp(5.0) + std::exp(2.0)) + 1.0;
  ExpectValues(sum.value, {first + third});
  EXPECT_EQ(sum.items, 2);
  EXPECT_EQ(loss.Count(labels), 2);
}

TEST(CausalLmLossCount, SeesTheLabelsOfAStridedView) {
  const Tensor labels = TensorOf<int64_t>(Cpu(), {1, -100, 2, -100, 3, -100}, {3, 2});
  EXPECT_EQ(CausalLmLoss().Count(labels.Slice(1, 0, 1)), 3);
  EXPECT_EQ(CausalLmLoss().Count(labels.Slice(1, 1, 2)), 0);
}

TEST(Cast, RoundsTheValueForwardAndTheGradientBack) {
  const double third = 1.0 / 3.0;
  const Variable x = Variable::Leaf(TensorOf<double>(Cpu(), {third, 1.5}, {2}));
  Tape tape;
  {
    const Recording on(tape);
    const Variable narrow = Cast(x, DType::kF32);
    EXPECT_EQ(narrow.value().ToHost<float>(),
              (std::vector<float>{static_cast<float>(third), 1.5f}));
    tape.Backward(Sum(Scale(Cast(narrow, DType::kF64), third)));
  }
  // The gradient passed through f32 on its way.
  const double rounded = static_cast<float>(third);
  EXPECT_EQ(x.grad().ToHost<double>(), (std::vector<double>{rounded, rounded}));
}

TEST(Cast, WidensExactly) {
  const Variable x = Variable::Leaf(TensorOf<float>(Cpu(), {0.1f, -7.25f}, {2}));
  Tape tape;
  const Recording on(tape);
  const Variable wide = Cast(x, DType::kF64);
  ExpectValues(wide, {static_cast<double>(0.1f), -7.25}, 0.0);
  tape.Backward(Sum(wide), 3.0);
  EXPECT_EQ(x.grad().ToHost<float>(), (std::vector<float>{3.0f, 3.0f}));
}

TEST(Cast, ToTheSameDtypeIsTheSameVariable) {
  const Variable x = Variable::Leaf(TensorOf<float>(Cpu(), {1.0f}, {1}));
  EXPECT_EQ(Cast(x, DType::kF32).ident(), x.ident());
}

TEST(Dropout, GradientIsScaledByTheMaskOfTheForward) {
  const Variable x = Variable::Leaf(NormalTensor(Cpu(), DType::kF64, {2, 3, 8}, 4));
  const Tensor seed = NormalTensor(Cpu(), DType::kF64, {2, 3, 8}, 5);
  Tape tape;
  Variable y;
  {
    const Recording on(tape, {.seed = 9, .step = 2, .samples = {10, 11}});
    y = Dropout(x, 0.25);
  }
  tape.Backward({&y, 1}, {&seed, 1});
  const std::vector<double> values = x.value().ToHost<double>();
  const std::vector<double> dropped = y.value().ToHost<double>();
  const std::vector<double> grad = x.grad().ToHost<double>();
  const std::vector<double> direction = seed.ToHost<double>();
  int zeros = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const bool kept = dropped[i] != 0.0;
    zeros += kept ? 0 : 1;
    EXPECT_DOUBLE_EQ(dropped[i], kept ? values[i] / 0.75 : 0.0);
    EXPECT_DOUBLE_EQ(grad[i], kept ? direction[i] / 0.75 : 0.0);
  }
  EXPECT_GT(zeros, 2);
  EXPECT_LT(zeros, 24);
}

TEST(Dropout, DoesNothingWithoutARecordingOrAtZero) {
  const Variable x = Variable::Leaf(NormalTensor(Cpu(), DType::kF64, {2, 3}, 4));
  EXPECT_EQ(Dropout(x, 0.5).ident(), x.ident());
  Tape tape;
  const Recording on(tape);
  EXPECT_EQ(Dropout(x, 0.0).ident(), x.ident());
}

TEST(Dropout, WantsOneSampleForEachRow) {
  const Variable x = NormalTensor(Cpu(), DType::kF64, {2, 3}, 4);
  Tape tape;
  const Recording on(tape, {.samples = {1, 2, 3}});
  EXPECT_TRUE(Contains(ErrorOf([&] { Dropout(x, 0.5); }), "[dropout]"));
  EXPECT_TRUE(Contains(ErrorOf([&] { Dropout(x, 0.5); }), "samples (3)"));
  EXPECT_TRUE(Contains(ErrorOf([&] { Dropout(x, 1.0); }), "got 1"));
}

}  // namespace
}  // namespace sherd::testing
