// Losses and pooling, through every check of the op table.

#include <vector>

#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/loss/classification.h"
#include "sherd/autograd/loss/pooling.h"
#include "sherd/autograd/ops/linear.h"
#include "tests/support/op_table.h"

namespace sherd::testing {
namespace {

using In = OpInputs;

Operand SomeLabels() { return GivenIds({1, -100, 4, 0, 2, -100}, {2, 3}); }

std::vector<OpRow> Tokens() {
  const auto loss = [](kernels::CrossEntropyOptions options) {
    return [=](In in) { return CrossEntropy(in[0], in[1].value(), options).value; };
  };
  std::vector<OpRow> rows = {
      {.name = "cross entropy",
       .operands = {Normal({4, 6}), Ids({4}, 6)},
       .function = loss({}),
       .golden = "loss/cross entropy"},
      {.name = "cross entropy of i32 labels",
       .operands = {Normal({4, 6}), Ids({4}, 6).I32()},
       .function = loss({})},
      {.name = "cross entropy with ignored labels",
       .operands = {Normal({2, 3, 5}), SomeLabels()},
       .function = [](In in) { return TokenClassificationLoss()(in[0], in[1].value()).value; },
       .golden = "loss/cross entropy with ignored labels"},
      {.name = "label smoothing",
       .operands = {Normal({2, 3, 5}), SomeLabels()},
       .function = loss({.label_smoothing = 0.2}),
       .golden = "loss/label smoothing"},
      {.name = "z-loss",
       .operands = {Normal({2, 3, 5}), SomeLabels()},
       .function = loss({.z_loss = 0.05}),
       .golden = "loss/z-loss"},
      {.name = "label smoothing and z-loss",
       .operands = {Normal({2, 3, 5}), SomeLabels()},
       .function =
           [](In in) {
             return CausalLmLoss({.label_smoothing = 0.2, .z_loss = 0.05})(in[0], in[1].value())
                 .value;
           },
       .golden = "loss/label smoothing and z-loss"},
      {.name = "causal loss that shifts inside",
       .operands = {Normal({2, 4, 5}), Ids({2, 4}, 5)},
       .function =
           [](In in) {
             return CausalLmLoss({.labels = LabelMode::kShiftInside})(in[0], in[1].value()).value;
           },
       .golden = "loss/causal loss that shifts inside"},
      {.name = "causal loss of packed documents",
       .operands = {Normal({1, 6, 5}), Ids({1, 6}, 5)},
       .function =
           [](In in) {
             LossLabels labels = in[1].value();
             const std::vector<int64_t> ends = {0, 2, 3, 6};
             labels.cu_seqlens = Tensor::FromHost<int64_t>(in[0].value().device(), ends, {4});
             return CausalLmLoss({.labels = LabelMode::kShiftInside})(in[0], labels).value;
           },
       .golden = "loss/causal loss of packed documents"},
      {.name = "linear cross entropy",
       .operands = {Normal({2, 3, 4}), Normal({7, 4}), GivenIds({1, -100, 4, 0, 6, -100}, {2, 3})},
       .function =
           [](In in) {
             return LinearCrossEntropy(in[0], in[1], in[2].value(),
                                       {.cross_entropy = {.label_smoothing = 0.2, .z_loss = 0.05},
                                        .chunk_classes = 3})
                 .value;
           },
       .golden = "loss/linear cross entropy"},
      {.name = "linear cross entropy of a square",
       .operands = {Normal({4, 4}), Normal({4, 4}), Ids({4}, 4)},
       .function =
           [](In in) {
             return LinearCrossEntropy(in[0], in[1], in[2].value(), {.chunk_classes = 3}).value;
           }},
  };
  for (OpRow& row : rows) {
    row.dtype_eps = 4.0;
    row.layout_eps = 4.0;
  }
  return rows;
}

std::vector<OpRow> Elements() {
  const auto sequences = [](SequenceProblem problem) {
    return [=](In in) {
      return SequenceClassificationLoss({.problem = problem})(in[0], in[1].value()).value;
    };
  };
  return {
      {.name = "several labels",
       .operands = {Normal({3, 4}), Probability({3, 4}).Constant()},
       .function = sequences(SequenceProblem::kMultiLabel),
       .golden = "loss/several labels",
       .twice = false},
      {.name = "several labels far away",
       .operands = {GivenFloats({40.0, -40.0, 800.0, -800.0}, {2, 2}),
                    GivenFloats({1.0, 0.0, 0.0, 1.0}, {2, 2}).Constant()},
       .function = sequences(SequenceProblem::kMultiLabel),
       .golden = "loss/several labels far away",
       .twice = false},
      {.name = "mse",
       .operands = {Normal({2, 3}), Normal({2, 3}).Constant()},
       .function = [](In in) { return MseLoss()(in[0], in[1].value()).value; },
       .golden = "loss/mse",
       .twice = false},
      {.name = "regression of one number",
       .operands = {Normal({4, 1}), Normal({4}).Constant()},
       .function = sequences(SequenceProblem::kRegression),
       .golden = "loss/regression of one number",
       .twice = false},
  };
}

std::vector<OpRow> Pooled() {
  return {
      {.name = "last tokens",
       .operands = {Normal({3, 3, 2}), GivenIds({1, 1, 0, 0, 1, 1, 1, 0, 1}, {3, 3})},
       .function = [](In in) { return LastTokens(in[0], in[1].value()); },
       .golden = "loss/last tokens"},
      {.name = "first tokens",
       .operands = {Normal({3, 3, 2})},
       .function = [](In in) { return FirstTokens(in[0]); },
       .golden = "loss/first tokens"},
      {.name = "a classifier of sequences",
       .operands = {Normal({3, 4, 2}), Normal({3, 2}),
                    GivenIds({1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 1, 1}, {3, 4}), Ids({3}, 3)},
       .function =
           [](In in) {
             const Variable logits = Linear(LastTokens(in[0], in[2].value()), in[1]);
             return SequenceClassificationLoss()(logits, in[3].value()).value;
           },
       .golden = "loss/a classifier of sequences",
       .layout_eps = 4.0,
       .dtype_eps = 4.0},
  };
}

std::vector<OpRow> All() {
  std::vector<OpRow> all;
  for (const auto& part : {Tokens(), Elements(), Pooled()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

SHERD_TEST_OP_TABLE(Loss, All());

}  // namespace
}  // namespace sherd::testing
