#include "llm/models/text_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/call.h"
#include "sherd/autograd/loss/pooling.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/similarity.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"

namespace llm {
namespace {

using sherd::DType;
using sherd::Tensor;
using sherd::Variable;

// A mask on the host; ones where there is none.
std::vector<double> MaskOf(const Tensor& mask, int64_t count) {
  if (!mask.defined()) return std::vector<double>(static_cast<size_t>(count), 1.0);
  std::vector<double> values;
  if (mask.dtype() == DType::kI32) {
    for (int32_t m : mask.ToHost<int32_t>()) values.push_back(m != 0 ? 1.0 : 0.0);
  } else {
    for (int64_t m : mask.ToHost<int64_t>()) values.push_back(m != 0 ? 1.0 : 0.0);
  }
  return values;
}

// [B, 1, T]: what each token counts in the mean of its row.
Tensor MeanWeights(const Variable& hidden, const Tensor& mask) {
  const int64_t rows = hidden.dim(0), tokens = hidden.dim(1);
  std::vector<double> weights = MaskOf(mask, rows * tokens);
  for (auto row = weights.begin(); row != weights.end(); row += tokens) {
    double count = 0.0;
    for (auto w = row; w != row + tokens; ++w) count += *w;
    for (auto w = row; w != row + tokens; ++w) *w /= std::max(count, 1.0);
  }
  const sherd::Device& device = hidden.value().device();
  if (hidden.dtype() == DType::kF64) {
    return Tensor::FromHost<double>(device, weights, {rows, 1, tokens});
  }
  const std::vector<float> narrow(weights.begin(), weights.end());
  return Tensor::FromHost<float>(device, narrow, {rows, 1, tokens});
}

}  // namespace

Variable TextModel::operator()(const TextInput& input) {
  return Call(
      *this, [](TextModel& self, const TextInput& input) { return self.Forward(input); }, input);
}

Variable TextModel::operator()(const Variable& tokens, const Tensor& cu_seqlens) {
  return (*this)(TextInput{.tokens = tokens, .cu_seqlens = cu_seqlens});
}

int64_t TextModel::size() const {
  int64_t elems = 0;
  for (const sherd::Parameter& parameter : parameters()) elems += parameter.numel();
  return elems;
}

void TextModel::RegisterLayer(sherd::Module& layer) {
  RegisterModule(absl::StrCat("block", layers_.size()), layer);
  layers_.push_back(&layer);
}

Variable TextModel::Forward(const TextInput& input) {
  Check(input);
  const Variable hidden = Hidden(input);
  if (input.cache) input.cache->Advance(input.tokens.dim(1));
  switch (head_.kind) {
    case Head::kClassification:
      return Classes(hidden, input.mask);
    case Head::kEmbedding:
      return Embed(hidden, input.pool_mask(), head_);
    case Head::kLanguageModel:
      break;
  }
  const int64_t at = input.logits_at;
  return Logits(at < 0 ? hidden : Slice(hidden, 1, at, at + 1));
}

void TextModel::Check(const TextInput& input) const {
  const sherd::ErrorContext what{.op = "TextModel"};
  const Variable& tokens = input.tokens;
  if (!tokens.defined() || tokens.shape().rank() != 2) {
    sherd::ThrowInvalidArgument("tokens are not [B, T]", what);
  }
  const int64_t count = tokens.dim(1) + (input.cache ? input.cache->tokens() : 0);
  if (count > positions()) {
    sherd::ThrowInvalidArgument(
        absl::StrCat("rows have ", count, " tokens, and the model has ", positions(), " positions"),
        what);
  }
  for (const auto& [tensor, name] :
       {std::pair(&input.mask, "the mask"), std::pair(&input.positions, "positions"),
        std::pair(&input.token_types, "token types"),
        std::pair(&input.pooled, "the mask of what is pooled")}) {
    if (!tensor->defined() || tensor->shape() == tokens.shape()) continue;
    sherd::ThrowInvalidArgument(
        absl::StrCat(name, " is ", tensor->ToString(), ", tokens are ", tokens.value().ToString()),
        what);
  }
  if (head_.kind != Head::kLanguageModel && input.cu_seqlens.defined()) {
    sherd::ThrowInvalidArgument("a row of several documents has no one vector", what);
  }
  if (!input.cache) return;
  if (input.mask.defined() || input.cu_seqlens.defined()) {
    sherd::ThrowInvalidArgument("rows with a cache have neither a mask nor documents", what);
  }
  if (sherd::IsRecording()) {
    sherd::ThrowInvalidArgument("no gradient goes through a cache, and a Recording is on", what);
  }
  if (std::cmp_not_equal(input.cache->layers(), layers_.size())) {
    sherd::ThrowInvalidArgument(absl::StrCat("the cache is of ", input.cache->layers(),
                                             " layers, and the model has ", layers_.size()),
                                what);
  }
}

Variable Pool(const Variable& hidden, const Tensor& mask, Pooling pooling) {
  const int64_t rows = hidden.dim(0), tokens = hidden.dim(1), channels = hidden.dim(2);
  switch (pooling) {
    case Pooling::kFirst:
      return mask.defined() ? FirstTokens(hidden, mask) : FirstTokens(hidden);
    case Pooling::kLast:
      if (mask.defined()) return LastTokens(hidden, mask);
      return Reshape(Slice(hidden, 1, tokens - 1, tokens), {rows, channels});
    case Pooling::kMean:
      break;
  }
  const bool wide = hidden.dtype() == DType::kF32 || hidden.dtype() == DType::kF64;
  const Variable weights = MeanWeights(hidden, mask);
  return Reshape(Matmul(wide ? weights : Cast(weights, hidden.dtype()), hidden), {rows, channels});
}

Variable Embed(const Variable& hidden, const Tensor& mask, const HeadOptions& head) {
  const Variable rows = Pool(hidden, mask, head.pooling);
  return head.normalize ? L2Normalize(rows) : rows;
}

}  // namespace llm
