// Attention on the tape with padding, packed documents and dropout.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "sherd/autograd/gradcheck.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"
#include "sherd/autograd/tape.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

using kernels::AttentionOptions;

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

Tensor Ids(const std::vector<int64_t>& ids, const Shape& shape) {
  return TensorOf<int64_t>(Cpu(), ids, shape);
}

std::vector<Tensor> Operands(int64_t b, int64_t t, int64_t s) {
  return {NormalTensor(Cpu(), DType::kF64, {b, t, 4, 3}, 1),
          NormalTensor(Cpu(), DType::kF64, {b, s, 2, 3}, 2),
          NormalTensor(Cpu(), DType::kF64, {b, s, 2, 3}, 3)};
}

void ExpectGradients(const AttentionOptions& options, int64_t b, int64_t t, int64_t s) {
  const GradCheckResult result = GradCheck(
      [&](std::span<const Variable> in) { return Attention(in[0], in[1], in[2], options); },
      Operands(b, t, s));
  EXPECT_LT(result.worst_error, 1e-7) << result.worst;
}

TEST(AttentionMasks, CentralDifferencesAgree) {
  for (bool causal : {true, false}) {
    ExpectGradients({.causal = causal, .key_mask = Ids({0, 1, 1, 1, 0, 1}, {2, 3})}, 2, 3, 3);
    ExpectGradients({.causal = causal, .key_lengths = Ids({3, 0}, {2})}, 2, 2, 3);
    ExpectGradients({.causal = causal, .cu_seqlens = Ids({0, 1, 3}, {3})}, 1, 4, 4);
  }
}

TEST(AttentionMasks, ARowOfOnlyPaddingGivesZerosAndNoNan) {
  const std::vector<Tensor> x = Operands(1, 2, 2);
  const Variable q = Variable::Leaf(x[0]), k = Variable::Leaf(x[1]), v = Variable::Leaf(x[2]);
  Tape tape;
  const Recording on(tape);
  const Variable out = Attention(q, k, v, {.causal = false, .key_mask = Ids({0, 0}, {1, 2})});
  tape.Backward(Sum(Mul(out, out)));
  for (const Tensor& zeros : {out.value(), q.grad(), k.grad(), v.grad()}) {
    for (double value : zeros.ToHost<double>()) EXPECT_EQ(value, 0.0);
  }
}

TEST(AttentionMasks, WhatDoesNotFitIsNamed) {
  const std::vector<Tensor> x = Operands(2, 3, 3);
  const auto error = [&](const AttentionOptions& options) {
    return ErrorOf([&] { Attention(x[0], x[1], x[2], options); });
  };
  const auto expect = [&](const AttentionOptions& options, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_TRUE(Contains(error(options), part));
  };
  expect({.key_mask = Ids({1, 1, 1}, {1, 3})},
         {"[attention]", "k is f64 [2, 3, 2, 3]", "key_mask is i64 [1, 3]"});
  expect({.key_mask = x[0]}, {"key_mask is f64 [2, 3, 4, 3]"});
  expect({.key_lengths = Ids({1}, {1})}, {"key_lengths is i64 [1]"});
  expect({.key_lengths = TensorOf<int64_t>(Device::Cpu({.index = 1}), {1, 1}, {2})},
         {"different devices", "on cpu:0", "key_lengths is i64 [2] on cpu:1"});
  expect({.cu_seqlens = Ids({0, 7}, {2})}, {"at most the 6 tokens", "0, 7"});
  expect({.cu_seqlens = Ids({0, 3}, {1, 2})}, {"cu_seqlens is i64 [1, 2]"});
  expect({.key_lengths = Ids({1, 1}, {2}), .cu_seqlens = Ids({0, 3}, {2})}, {"no mask besides"});
  const Tensor longer = NormalTensor(Cpu(), DType::kF64, {2, 4, 2, 3}, 2);
  EXPECT_TRUE(Contains(ErrorOf([&] {
                         Attention(x[0], longer, longer, {.cu_seqlens = Ids({0, 3}, {2})});
                       }),
                       "same tokens"));
  Tape tape;
  const Recording on(tape, {.samples = {4}});
  expect({.dropout = 0.5}, {"the rows of q (2)", "samples (1)"});
  expect({.dropout = 1.0}, {"dropout lies in [0, 1), got 1"});
}

// Rows of one batch in a recording with the given samples; value and gradients.
std::vector<std::vector<double>> Dropped(const std::vector<Tensor>& x, int64_t begin, int64_t end,
                                         int64_t step, const std::vector<int64_t>& samples) {
  std::vector<Variable> rows;
  for (const Tensor& operand : x) {
    rows.push_back(Variable::Leaf(operand.Slice(0, begin, end)));
  }
  Tape tape;
  const Recording on(tape, {.seed = 3, .step = step, .samples = samples});
  const Variable out = Attention(rows[0], rows[1], rows[2], {.dropout = 0.4});
  tape.Backward(Sum(Mul(out, out)));
  return {out.value().ToHost<double>(), rows[0].grad().ToHost<double>(),
          rows[1].grad().ToHost<double>(), rows[2].grad().ToHost<double>()};
}

TEST(AttentionDropout, DoesNotDependOnHowRowsAreSplit) {
  const std::vector<Tensor> x = Operands(2, 6, 6);
  const auto whole = Dropped(x, 0, 2, 5, {10, 11});
  const auto first = Dropped(x, 0, 1, 5, {10}), second = Dropped(x, 1, 2, 5, {11});
  for (size_t i = 0; i < whole.size(); ++i) {
    std::vector<double> parts = first[i];
    parts.insert(parts.end(), second[i].begin(), second[i].end());
    EXPECT_EQ(whole[i], parts);
  }
  EXPECT_NE(Dropped(x, 0, 1, 6, {10})[0], first[0]);
  EXPECT_NE(Dropped(x, 0, 1, 5, {12})[0], first[0]);
}

TEST(AttentionDropout, TheGradientIsThatOfTheSameMask) {
  // Central differences by hand: each forward records anew with the same key.
  std::vector<Tensor> x = Operands(2, 3, 3);
  const auto loss = [&] {
    double sum = 0.0;
    const auto results = Dropped(x, 0, 2, 1, {0, 1});
    for (double value : results[0]) sum += value * value;
    return sum;
  };
  const auto analytic = Dropped(x, 0, 2, 1, {0, 1});
  for (size_t operand = 0; operand < 3; ++operand) {
    double* const at = x[operand].data<double>();
    for (int64_t i = 0; i < x[operand].numel(); ++i) {
      const double before = at[i], step = 1e-5;
      at[i] = before + step;
      const double above = loss();
      at[i] = before - step;
      const double below = loss();
      at[i] = before;
      EXPECT_NEAR(analytic[operand + 1][static_cast<size_t>(i)], (above - below) / (2 * step),
                  1e-7);
    }
  }
}

TEST(AttentionDropout, IsOffWithoutARecording) {
  const std::vector<Tensor> x = Operands(2, 3, 3);
  EXPECT_TRUE(SameBits(Attention(x[0], x[1], x[2], {.dropout = 0.4}).value(),
                       Attention(x[0], x[1], x[2], {}).value()));
}

}  // namespace
}  // namespace sherd::testing
