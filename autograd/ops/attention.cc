#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/autograd/ops/transformer.h"
#include "sherd/autograd/tape.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

using kernels::AttentionOptions;

// Refuses a mask that is not i32 or i64 of the wanted shape beside the operand it is
// for.
void CheckMask(const Tensor& mask, std::string_view name, const Shape& shape,
               std::string_view wanted, std::string_view like_name, const Tensor& like) {
  if (!mask.defined()) return;
  if (!(mask.device() == like.device())) {
    RefuseOperands("operands are on different devices; move the mask with ToDeviceOf", like_name,
                   like, name, mask);
  }
  if ((mask.dtype() != DType::kI32 && mask.dtype() != DType::kI64) || !(mask.shape() == shape)) {
    RefuseOperands(absl::StrCat(std::string(name), " is i32 or i64 ", std::string(wanted)),
                   like_name, like, name, mask);
  }
}

void CheckMasks(const AttentionOptions& o, const Tensor& q, const Tensor& k) {
  CheckMask(o.key_mask, "key_mask", {k.dim(0), k.dim(1)}, "[B, S] of k [B, S, Hkv, D]", "k", k);
  CheckMask(o.key_lengths, "key_lengths", {k.dim(0)}, "[B] of k [B, S, Hkv, D]", "k", k);
  if (!o.cu_seqlens.defined()) return;
  const int64_t ends = o.cu_seqlens.rank() == 1 ? o.cu_seqlens.dim(0) : 0;
  CheckMask(o.cu_seqlens, "cu_seqlens", {ends}, "[documents + 1]", "q", q);
  if (q.dim(1) != k.dim(1)) {
    RefuseOperands("packed documents need keys for the same tokens as queries", "q", q, "k", k);
  }
  if (o.key_mask.defined() || o.key_lengths.defined()) {
    RefuseOperands("packed documents take no mask besides", "cu_seqlens", o.cu_seqlens, "the mask",
                   o.key_mask.defined() ? o.key_mask : o.key_lengths);
  }
}

// Pairs of a query and a key that it may see, over all rows; masks of keys are not looked at.
double Pairs(const AttentionOptions& o, const Tensor& q, const Tensor& k) {
  const auto pairs = [&](double queries, double keys) {
    return o.causal && queries == keys ? queries * (queries + 1) / 2 : queries * keys;
  };
  const auto wide = [](int64_t n) { return static_cast<double>(n); };
  if (!o.cu_seqlens.defined()) return wide(q.dim(0)) * pairs(wide(q.dim(1)), wide(k.dim(1)));
  double sum = 0.0;
  const auto add = [&](const auto& ends) {
    for (size_t i = 1; i < ends.size(); ++i) {
      const double n = static_cast<double>(ends[i]) - static_cast<double>(ends[i - 1]);
      sum += pairs(n, n);
    }
  };
  o.cu_seqlens.dtype() == DType::kI64 ? add(o.cu_seqlens.ToHost<int64_t>())
                                      : add(o.cu_seqlens.ToHost<int32_t>());
  return sum;
}

class AttentionOp final : public Op {
 public:
  explicit AttentionOp(AttentionOptions options) : options_(std::move(options)) {
    options_.row_samples = {};  // the caller's memory; the recording has them
  }
  std::string_view name() const override { return "attention"; }
  // Only random ops are handed a key.
  OpKind kind() const override {
    return options_.dropout > 0.0 ? OpKind::kRandom : OpKind::kAttention;
  }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& q = in[0];
    const Tensor& k = in[1];
    const Tensor& v = in[2];
    if (q.rank() != 4 || k.rank() != 4 || q.dim(0) != k.dim(0) || q.dim(3) != k.dim(3) ||
        q.dtype() != k.dtype() || !IsFloating(q.dtype()) || q.dim(3) > 256) {
      RefuseOperands(
          "q [B, T, H, D] and k [B, S, Hkv, D] need one B, D (at most 256) and float dtype", "q", q,
          "k", k);
    }
    if (k.dim(2) == 0 || q.dim(2) % k.dim(2) != 0) {
      RefuseOperands("the query heads are a multiple of the key heads", "q", q, "k", k);
    }
    if (!(k.shape() == v.shape()) || k.dtype() != v.dtype()) {
      RefuseOperands("keys and values need one shape and dtype", "k", k, "v", v);
    }
    CheckMasks(options_, q, k);
    if (!(options_.dropout >= 0.0 && options_.dropout < 1.0)) {
      ThrowInvalidArgument(absl::StrCat("dropout lies in [0, 1), got ", options_.dropout));
    }
    const DType statistics = q.dtype() == DType::kF64 ? DType::kF64 : DType::kF32;
    plan.outputs = {{q.dtype(), q.shape()}};
    plan.inner = {{statistics, {q.dim(0), q.dim(2), q.dim(1)}}};
    plan.backward_reads_inputs = 0b111;
    plan.backward_reads_outputs = 0b1;
    plan.flops = 4.0 * static_cast<double>(q.dim(2) * q.dim(3)) * Pairs(options_, q, k);
  }
  void Forward(OpForward& f) const override {
    const int64_t rows = f.inputs[0].dim(0);
    if (options_.dropout > 0.0 && static_cast<int64_t>(f.row_samples.size()) != rows) {
      ThrowInvalidArgument(absl::StrCat("the rows of q (", rows,
                                        ") are not the recording's samples (", f.row_samples.size(),
                                        "): give Recording the global index of each row's sample"));
    }
    kernels::Attention(f.inputs[0], f.inputs[1], f.inputs[2],
                       OptionsFor(f.random_key, f.row_samples), f.outputs[0], f.inner[0]);
  }
  void Backward(OpBackward& b) const override {
    // Each gradient goes to a buffer of its own: one variable may be several of the operands.
    Tensor grads[3];
    for (int i = 0; i < 3; ++i) {
      if (b.needs(i)) {
        grads[i] = Tensor::Empty(b.grad().device(), b.input(i).dtype(), b.input(i).shape());
      }
    }
    using kernels::Write;
    const bool random = options_.dropout > 0.0;
    kernels::AttentionBackward(
        b.grad(), b.input(0), b.input(1), b.input(2), b.output(0), b.inner(0),
        OptionsFor(random ? b.random_key() : 0,
                   random ? b.row_samples() : std::span<const int64_t>()),
        grads[0], Write::kOverwrite, grads[1], Write::kOverwrite, grads[2], Write::kOverwrite);
    for (int i = 0; i < 3; ++i) {
      if (b.needs(i)) b.Pass(i, std::move(grads[i]));
    }
  }

 private:
  AttentionOptions OptionsFor(uint64_t random_key, std::span<const int64_t> row_samples) const {
    AttentionOptions options = options_;
    options.random_key = random_key;
    options.row_samples = row_samples;
    return options;
  }

  AttentionOptions options_;
};

}  // namespace

Variable Attention(const Variable& q, const Variable& k, const Variable& v,
                   kernels::AttentionOptions options, CallSite site) {
  if (!IsRecording()) options.dropout = 0.0;
  return ApplyOne(AttentionOp(std::move(options)), {q, k, v}, site);
}

}  // namespace sherd
