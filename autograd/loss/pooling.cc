#include "sherd/autograd/loss/pooling.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/autograd/internal/recorder.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/embedding.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd {
namespace {

std::vector<int64_t> Values(const Tensor& x) {
  if (x.dtype() == DType::kI64) return x.ToHost<int64_t>();
  const std::vector<int32_t> narrow = x.ToHost<int32_t>();
  return {narrow.begin(), narrow.end()};
}

bool IsInteger(const Tensor& x) {
  return x.defined() && (x.dtype() == DType::kI32 || x.dtype() == DType::kI64);
}

// Row ids[b] of x [B, T, C] with its first dimensions merged, for each b.
class TakeTokensOp final : public Op {
 public:
  std::string_view name() const override { return "take_tokens"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    plan.outputs = {{in[0].dtype(), {in[0].dim(0), in[0].dim(2)}}};
    plan.backward_reads_inputs = 0b10;
  }
  void Forward(OpForward& f) const override {
    kernels::Embedding(f.inputs[1], Merged(kernels::PackRows(f.inputs[0])), f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0, GradDType::kWide);
    kernels::EmbeddingBackward(b.grad(), b.input(1), Merged(target.tensor), target.write);
  }

 private:
  static Tensor Merged(const Tensor& x) { return x.Reshape({x.dim(0) * x.dim(1), x.dim(2)}); }
};

// The flat index of the chosen token of each row; without a mask all are tokens.
std::vector<int64_t> Places(const Variable& x, const Tensor* mask, bool last) {
  if (x.value().rank() != 3 || !IsFloating(x.dtype())) {
    RefuseOperand("one token of a float x [B, T, C] is taken", "x", x.value());
  }
  const int64_t rows = x.dim(0), tokens = x.dim(1);
  std::vector<int64_t> seen;
  if (mask != nullptr) {
    if (!IsInteger(*mask) || !(mask->shape() == Shape{rows, tokens})) {
      RefuseOperands("x [B, T, C] needs an i32 or i64 mask [B, T]", "x", x.value(), "the mask",
                     *mask);
    }
    seen = Values(*mask);
  }
  std::vector<int64_t> places;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t place = -1;
    for (int64_t t = 0; t < tokens && (last || place < 0); ++t) {
      if (mask == nullptr || seen[static_cast<size_t>(row * tokens + t)] != 0) place = t;
    }
    if (place < 0) ThrowInvalidArgument(absl::StrCat("row ", row, " has only padding"));
    places.push_back(row * tokens + place);
  }
  return places;
}

Variable Take(const Variable& x, const Tensor* mask, bool last, CallSite site) {
  const char* const name = last ? "last_tokens" : "first_tokens";
  try {
    if (!x.defined()) ThrowInvalidArgument("x is undefined");
    const std::vector<int64_t> places = Places(x, mask, last);
    const Tensor ids = Tensor::FromHost<int64_t>(x.value().device(), places, {x.dim(0)});
    return ApplyOne(TakeTokensOp(), {x, Variable(ids)}, site);
  } catch (const Error& error) {
    throw error.With({.op = name, .module_path = internal::CurrentModulePath(), .site = site});
  }
}

}  // namespace

Variable LastTokens(const Variable& x, const Tensor& mask, CallSite site) {
  return Take(x, &mask, true, site);
}

Variable FirstTokens(const Variable& x, CallSite site) { return Take(x, nullptr, false, site); }

Variable FirstTokens(const Variable& x, const Tensor& mask, CallSite site) {
  return Take(x, &mask, false, site);
}

Tensor MaskOfTokens(const Tensor& ids, int64_t pad_id) {
  if (!IsInteger(ids)) RefuseOperand("ids are i32 or i64", "ids", ids);
  std::vector<int64_t> mask = Values(ids);
  std::transform(mask.begin(), mask.end(), mask.begin(),
                 [&](int64_t id) -> int64_t { return id != pad_id; });
  return Tensor::FromHost<int64_t>(ids.device(), mask, ids.shape());
}

}  // namespace sherd
