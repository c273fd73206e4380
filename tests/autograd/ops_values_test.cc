// What the op table cannot say of ops: the rounding of casts, the mask of dropout, counts.

#include <gtest/gtest.h>

#include <vector>

#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

void ExpectValues(const Variable& got, const std::vector<double>& want, double tolerance = 1e-12) {
  const std::vector<double> values = got.value().ToHost<double>();
  ASSERT_EQ(values.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(values[i], want[i], tolerance) << "element " << i;
}

TEST(CausalLmLossCount, IsThatOfTheLabelledRows) {
  const Variable logits = NormalTensor(Cpu(), DType::kF64, {3, 3}, 1);
  const Tensor labels = TensorOf<int64_t>(Cpu(), {2, -100, 0}, {3});
  const CausalLmLoss loss;
  EXPECT_EQ(loss(logits, labels).items, 2);
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
