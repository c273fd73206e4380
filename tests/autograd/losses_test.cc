// Losses: which items count, where labels may lie, what is refused. Values against PyTorch are rows
// of ops_table_loss_test.cc.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/loss/classification.h"
#include "sherd/autograd/loss/pooling.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

constexpr int64_t kNone = -100;

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

Device Other() {
  static const Device device = Device::Cpu({.index = 1});
  return device;
}

Tensor Ids(const std::vector<int64_t>& ids, const Shape& shape) {
  return TensorOf<int64_t>(Cpu(), ids, shape);
}

double Value(const LossSum& loss) { return *loss.value.value().data<double>(); }

// log sum exp of row i minus the logit of `target`.
double RowLoss(const Tensor& logits, int64_t i, int64_t target) {
  const int64_t v = logits.shape().back();
  const double* const x = logits.data<double>() + i * v;
  double sum = 0.0;
  for (int64_t j = 0; j < v; ++j) sum += std::exp(x[j]);
  return std::log(sum) - x[target];
}

// What `loss` sums over rows of logits whose target is not kNone.
double Expected(const Tensor& logits, const std::vector<int64_t>& targets) {
  double sum = 0.0;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i] != kNone) sum += RowLoss(logits, static_cast<int64_t>(i), targets[i]);
  }
  return sum;
}

void ExpectSum(const Loss& loss, const LossLabels& labels, const std::vector<int64_t>& targets,
               const Shape& shape) {
  const Tensor logits = NormalTensor(Cpu(), DType::kF64, shape.Append(5), 3);
  int64_t items = 0;
  for (int64_t target : targets) items += target != kNone;
  EXPECT_EQ(loss.Count(labels), items);
  const LossSum sum = loss(logits, labels);
  EXPECT_EQ(sum.items, items);
  EXPECT_NEAR(Value(sum), Expected(logits, targets), 1e-12);
}

CausalLmLoss ShiftInside() { return CausalLmLoss({.labels = LabelMode::kShiftInside}); }

TEST(LabelModes, ShiftedLabelsAreTakenAsTheyAre) {
  ExpectSum(CausalLmLoss(), Ids({1, 2, 3, kNone}, {2, 2}), {1, 2, 3, kNone}, {2, 2});
}

TEST(LabelModes, TokenIdsAreShiftedInsideTheLossAlongEachRow) {
  ExpectSum(ShiftInside(), Ids({1, 2, 3, 4, 0, kNone}, {2, 3}), {2, 3, kNone, 0, kNone, kNone},
            {2, 3});
  const Tensor narrow = TensorOf<int32_t>(Cpu(), {1, 2, 3}, {3});
  ExpectSum(ShiftInside(), narrow, {2, 3, kNone}, {3});
}

TEST(LabelModes, ShiftedLabelsOfTheBatchWin) {
  LossLabels labels = Ids({1, 2, 3}, {1, 3});
  labels.shifted_labels = Ids({4, 0, 1}, {1, 3});
  ExpectSum(ShiftInside(), labels, {4, 0, 1}, {1, 3});
  labels.labels = Tensor();
  ExpectSum(ShiftInside(), labels, {4, 0, 1}, {1, 3});
}

TEST(LabelModes, AlignedLabelsKnowNoDocuments) {
  LossLabels labels = Ids({1, 2, 3}, {1, 3});
  labels.cu_seqlens = Ids({0, 1, 3}, {3});
  ExpectSum(CausalLmLoss({.labels = LabelMode::kAligned}), labels, {1, 2, 3}, {1, 3});
  ExpectSum(TokenClassificationLoss(), labels, {1, 2, 3}, {1, 3});
  ExpectSum(MaskedLmLoss(), Ids({kNone, 2, kNone}, {1, 3}), {kNone, 2, kNone}, {1, 3});
}

TEST(Documents, TheirFirstTokensAreNobodysTarget) {
  // Documents of 2, 1 and 3 tokens.
  const Tensor tokens = Ids({1, 2, 3, 4, 0, 1}, {1, 6});
  const std::vector<int64_t> targets = {2, kNone, kNone, 0, 1, kNone};
  LossLabels by_length = tokens, by_position = tokens, by_document = tokens;
  by_length.cu_seqlens = TensorOf<int32_t>(Cpu(), {0, 2, 3, 6}, {4});
  by_position.position_ids = Ids({0, 1, 0, 0, 1, 2}, {1, 6});
  by_document.document_ids = Ids({7, 7, 8, 9, 9, 9}, {1, 6});
  for (const LossLabels& labels : {by_length, by_position, by_document}) {
    ExpectSum(ShiftInside(), labels, targets, {1, 6});
    LossLabels shifted = labels;
    shifted.shifted_labels = Ids({2, 3, 4, 0, 1, 2}, {1, 6});
    ExpectSum(CausalLmLoss(), shifted, {2, kNone, kNone, 0, 1, 2}, {1, 6});
  }
}

TEST(Documents, RowsBeginAnew) {
  LossLabels labels = Ids({1, 2, 3, 4}, {2, 2});
  labels.position_ids = Ids({0, 1, 0, 1}, {2, 2});
  ExpectSum(ShiftInside(), labels, {2, kNone, 4, kNone}, {2, 2});
}

TEST(Documents, WhatDoesNotFitIsRefused) {
  const Tensor logits = NormalTensor(Cpu(), DType::kF64, {1, 3, 5}, 1);
  LossLabels labels = Ids({1, 2, 3}, {1, 3});
  labels.document_ids = Ids({0, 0}, {1, 2});
  const std::string shapes = ErrorOf([&] { ShiftInside()(logits, labels); });
  EXPECT_TRUE(Contains(shapes, "document_ids is i64 [1, 2]"));
  EXPECT_TRUE(Contains(shapes, "labels is i64 [1, 3]"));
  labels.document_ids = Tensor();
  for (const std::vector<int64_t>& bad :
       {std::vector<int64_t>{1, 3}, {0, 2, 1}, {0, 4}, std::vector<int64_t>{}}) {
    labels.cu_seqlens = Ids(bad, {static_cast<int64_t>(bad.size())});
    EXPECT_TRUE(Contains(ErrorOf([&] { ShiftInside().Count(labels); }), "ascend from 0"));
  }
}

TEST(LabelsOnAnotherDevice, AreRefusedNamingBoth) {
  const Tensor logits = NormalTensor(Cpu(), DType::kF64, {2, 5}, 1);
  const Tensor there = TensorOf<int64_t>(Other(), {1, 2}, {2});
  const std::string error = ErrorOf([&] { CausalLmLoss()(logits, there); });
  EXPECT_TRUE(Contains(error, "[causal_lm_loss] logits on cpu:0 and labels on cpu:1"));
  EXPECT_TRUE(Contains(error, "f64 [2, 5] on cpu:0"));
  EXPECT_TRUE(Contains(error, "losses_test.cc:"));
  EXPECT_TRUE(Contains(ErrorOf([&] { SequenceClassificationLoss()(logits, there); }),
                       "[sequence_classification_loss] logits on cpu:0 and labels on cpu:1"));
  LossLabels mixed = Ids({1, 2}, {2});
  mixed.extra.emplace_back("weights", NormalTensor(Other(), DType::kF64, {2}, 1));
  EXPECT_TRUE(Contains(ErrorOf([&] { CausalLmLoss()(logits, mixed); }),
                       "logits on cpu:0 and weights on cpu:1"));
  const Tensor weight = NormalTensor(Cpu(), DType::kF64, {5, 5}, 1);
  EXPECT_TRUE(Contains(ErrorOf([&] { CausalLmLoss().FromHidden(logits, weight, there); }),
                       "[causal_lm_loss] logits on cpu:0 and labels on cpu:1"));
}

TEST(LabelsOnAnotherDevice, AreMovedWhenAsked) {
  const Tensor logits = NormalTensor(Cpu(), DType::kF64, {4, 5}, 1);
  LossLabels there = TensorOf<int64_t>(Other(), {1, 2, 3, kNone}, {4});
  there.cu_seqlens = TensorOf<int32_t>(Other(), {0, 2, 4}, {3});
  const LossSum sum = CausalLmLoss({.labels_device = LabelsDevice::kMove})(logits, there);
  EXPECT_NEAR(Value(sum), Expected(logits, {1, kNone, 3, kNone}), 1e-12);
  EXPECT_EQ(sum.items, 2);
  EXPECT_EQ(there.labels.device().id().index, 1);  // the batch keeps its own
}

TEST(LabelsOutOfRange, AreNamedWithTheirPlaceInTheBatch) {
  const Tensor logits = NormalTensor(Cpu(), DType::kF64, {2, 3, 5}, 1);
  const Tensor labels = Ids({1, 2, 3, 4, 0, 5}, {2, 3});
  for (LabelMode mode : {LabelMode::kShifted, LabelMode::kShiftInside, LabelMode::kAligned}) {
    EXPECT_TRUE(Contains(ErrorOf([&] { CausalLmLoss({.labels = mode})(logits, labels); }),
                         "label 5 at [1, 2] is outside [0, 5)"));
  }
  EXPECT_TRUE(Contains(ErrorOf([&] { MaskedLmLoss()(logits, labels); }),
                       "[masked_lm_loss] label 5 at [1, 2] is outside [0, 5)"));
  const Tensor pooled = NormalTensor(Cpu(), DType::kF64, {2, 5}, 1);
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         SequenceClassificationLoss()(pooled, Ids({-1, 0}, {2}));
                       }),
                       "label -1 at [0] is outside [0, 5)"));
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         CausalLmLoss()(logits, Ids({1, 2}, {1, 2}));
                       }),
                       "labels is i64 [1, 2]"));
  EXPECT_TRUE(Contains(ErrorOf([&] { CausalLmLoss()(logits, logits); }), "labels are i32 or i64"));
}

TEST(SequenceClassification, CountsWhatItSums) {
  const Tensor logits = TensorOf<double>(Cpu(), {0.5, -1.0, 2.0, 0.0, 1.5, -0.5}, {3, 2});
  const SequenceClassificationLoss single;
  const LossSum one = single(logits, Ids({1, kNone, 0}, {3}));
  EXPECT_EQ(one.items, 2);
  EXPECT_NEAR(Value(one), RowLoss(logits, 0, 1) + RowLoss(logits, 2, 0), 1e-14);

  const SequenceClassificationLoss multi({.problem = SequenceProblem::kMultiLabel});
  const Tensor labels = TensorOf<double>(Cpu(), {1, 0, -100, 1, 0.25, 1}, {3, 2});
  const LossSum many = multi(logits, labels);
  EXPECT_EQ(multi.Count(labels), 5);
  EXPECT_EQ(many.items, 5);
  const auto bce = [](double x, double y) {
    const double p = 1.0 / (1.0 + std::exp(-x));
    return -y * std::log(p) - (1.0 - y) * std::log(1.0 - p);
  };
  EXPECT_NEAR(Value(many), bce(0.5, 1) + bce(-1, 0) + bce(0, 1) + bce(1.5, 0.25) + bce(-0.5, 1),
              1e-14);
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         multi(logits, TensorOf<double>(Cpu(), {1, 0, 2, 1, 0, 1}, {3, 2}));
                       }),
                       "label 2 at index 2 is outside [0, 1]"));

  const SequenceClassificationLoss regression(
      {.problem = SequenceProblem::kRegression, .ignore_value = 9.0});
  const Tensor score = TensorOf<double>(Cpu(), {1.0, 2.0, 3.0}, {3, 1});
  const LossSum squares = regression(score, TensorOf<float>(Cpu(), {0.5F, 9.0F, 5.0F}, {3}));
  EXPECT_EQ(squares.items, 2);
  EXPECT_NEAR(Value(squares), 0.25 + 4.0, 1e-15);
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         regression(score, Ids({1, 2, 3}, {3}));
                       }),
                       "labels is i64 [3]"));
}

TEST(BinaryCrossEntropy, IsFiniteForLogitsOfAnySize) {
  const Tensor values = TensorOf<float>(Cpu(), {1e30F, -1e30F, 1000.0F, -1000.0F}, {2, 2});
  const Variable logits = Variable::Leaf(values);
  const SequenceClassificationLoss multi({.problem = SequenceProblem::kMultiLabel});
  Tape tape;
  const Recording on(tape);
  const LossSum sum = multi(logits, TensorOf<float>(Cpu(), {1, 0, 0, 1}, {2, 2}));
  EXPECT_EQ(Value(sum), 2000.0);
  tape.Backward(sum.value);
  EXPECT_EQ(logits.grad().ToHost<float>(), (std::vector<float>{0, 0, 1, -1}));
}

TEST(Pooling, TakesTheLastOrFirstTokenThatIsNoPadding) {
  const Variable x = Variable::Leaf(NormalTensor(Cpu(), DType::kF64, {3, 4, 2}, 1));
  const std::vector<double> values = x.value().ToHost<double>();
  const Tensor ids = TensorOf<int32_t>(Cpu(), {5, 6, 7, 0, 0, 0, 8, 9, 1, 0, 2, 3}, {3, 4});
  const Tensor mask = MaskOfTokens(ids, 0);
  EXPECT_EQ(mask.ToHost<int64_t>(), (std::vector<int64_t>{1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1}));
  const auto expect = [&](const Variable& got, const std::vector<size_t>& tokens) {
    std::vector<double> want;
    for (size_t row = 0; row < 3; ++row) {
      for (size_t c = 0; c < 2; ++c) want.push_back(values[(row * 4 + tokens[row]) * 2 + c]);
    }
    EXPECT_EQ(got.value().ToHost<double>(), want);
  };
  expect(FirstTokens(x), {0, 0, 0});
  expect(FirstTokens(x, mask), {0, 2, 0});
  Tape tape;
  const Recording on(tape);
  const Variable last = LastTokens(x, mask);
  expect(last, {2, 3, 3});
  tape.Backward(Sum(last));
  std::vector<double> want(24, 0.0);
  for (size_t token : {2, 7, 11}) want[token * 2] = want[token * 2 + 1] = 1.0;
  EXPECT_EQ(x.grad().ToHost<double>(), want);
}

TEST(Pooling, NamesARowOfOnlyPadding) {
  const Variable x = NormalTensor(Cpu(), DType::kF64, {2, 2, 3}, 1);
  const Tensor mask = Ids({1, 0, 0, 0}, {2, 2});
  EXPECT_TRUE(Contains(ErrorOf([&] { LastTokens(x, mask); }), "[last_tokens] row 1 has only"));
  EXPECT_TRUE(Contains(ErrorOf([&] { FirstTokens(x, mask); }), "[first_tokens] row 1 has only"));
  const std::string error = ErrorOf([&] { LastTokens(x, Ids({1, 1}, {1, 2})); });
  EXPECT_TRUE(Contains(error, "x is f64 [2, 2, 3]"));
  EXPECT_TRUE(Contains(error, "the mask is i64 [1, 2]"));
}

// A loss as an embedder writes it.
class Weighted final : public Loss {
 public:
  struct Options {
    double factor = 2.0;
  };
  explicit Weighted(Options options) : options_(options) {}
  std::string_view name() const override { return "weighted"; }
  int64_t Count(const LossLabels& labels) const override { return labels.labels.numel(); }

 protected:
  LossSum Compute(const Variable& output, const LossLabels& labels, CallSite site) const override {
    const Variable product = Mul(output, labels.Extra("weights"), site);
    return {Sum(Scale(product, options_.factor, site), site), Count(labels)};
  }

 private:
  Options options_;
};

TEST(YourOwnLoss, HasOptionsOfItsOwnAndReadsWhatTheBatchCarries) {
  LossLabels labels = Ids({0, 0, 0}, {3});
  labels.extra.emplace_back("weights", TensorOf<double>(Cpu(), {1, 2, 3}, {3}));
  const Variable output = TensorOf<double>(Cpu(), {1, 10, 100}, {3});
  const LossSum sum = Weighted({.factor = 0.5})(output, labels);
  EXPECT_EQ(Value(sum), 160.5);
  EXPECT_EQ(sum.items, 3);
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         Weighted({})(output, Ids({0, 0, 0}, {3}));
                       }),
                       "[weighted] the batch carries no 'weights'"));
}

}  // namespace
}  // namespace sherd::testing
