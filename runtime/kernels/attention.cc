#include "sherd/runtime/kernels/attention.h"

#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

using internal::AttentionArgs;
using internal::HeadsView;

constexpr int64_t kMaxHeadSize = 256;

// Heads [head, ...) of batch entry b of a [B, T, H, D]; null when the tensor is undefined.
HeadsView ViewOf(const Tensor& x, int64_t b, int64_t head) {
  if (!x.defined()) return {nullptr, 0, 0};
  char* const data =
      internal::Address(x) + (b * x.strides()[0] + head * x.strides()[2]) * SizeOf(x.dtype());
  return {data, x.strides()[1], x.strides()[2]};
}

void CheckLike(const Tensor& x, const Tensor& like) {
  SHERD_CHECK(x.dtype() == like.dtype() && x.shape() == like.shape() &&
                  (x.numel() == 0 || x.dim(3) == 1 || x.strides()[3] == 1),
              "an operand of attention does not fit");
}

void CheckOperands(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                   const Tensor& lse) {
  SHERD_CHECK(q.rank() == 4 && k.rank() == 4 && q.dim(0) == k.dim(0) && q.dim(3) == k.dim(3) &&
                  q.dtype() == k.dtype() && k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0,
              "queries and keys of attention do not fit each other");
  SHERD_CHECK(q.dim(3) <= kMaxHeadSize, "the head size of attention is above 256");
  CheckLike(q, q);
  CheckLike(k, k);
  CheckLike(v, k);
  CheckLike(out, q);
  SHERD_CHECK(lse.dtype() == internal::ComputeDType(q.dtype()) && lse.is_contiguous() &&
                  lse.numel() == q.dim(0) * q.dim(1) * q.dim(2),
              "lse does not fit the queries of attention");
}

// What is the same in every job.
AttentionArgs ArgsOf(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  AttentionArgs args = {};
  args.queries = q.dim(1);
  args.keys = k.dim(1);
  args.head_size = q.dim(3);
  args.group = q.dim(2) / k.dim(2);
  args.causal = options.causal;
  args.scale = options.scale;
  return args;
}

// Calls f(args, batch entry, key head) for every job, args with a workspace.
template <typename F>
void ForEachJob(const Tensor& q, const Tensor& k, const AttentionArgs& shared, int64_t bytes,
                const F& f) {
  const int64_t key_heads = k.dim(2);
  q.device().pool().ParallelFor(q.dim(0) * key_heads, 1, [&](int64_t begin, int64_t end) {
    const internal::Workspace workspace(q.device(), bytes);
    AttentionArgs args = shared;
    args.workspace = workspace.data();
    for (int64_t job = begin; job < end; ++job) f(args, job / key_heads, job % key_heads);
  });
}

char* LseOf(const Tensor& lse, const AttentionArgs& args, int64_t b, int64_t heads, int64_t head) {
  return internal::Address(lse) + (b * heads + head) * args.queries * SizeOf(lse.dtype());
}

}  // namespace

void Attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
               const Tensor& out, const Tensor& lse) {
  if (!IsInnermostPacked(q) || !IsInnermostPacked(k) || !IsInnermostPacked(v)) {
    return Attention(PackInnermost(q), PackInnermost(k), PackInnermost(v), options, out, lse);
  }
  CheckOperands(q, k, v, out, lse);
  if (q.numel() == 0) return;
  const AttentionArgs shared = ArgsOf(q, k, options);
  const internal::AttentionLoops& loops = *internal::LoopsOf(q.device()).attention;
  const int index = internal::FloatIndex(q.dtype());
  ForEachJob(q, k, shared, loops.workspace_bytes[index](shared, false),
             [&](AttentionArgs& args, int64_t b, int64_t key_head) {
               const int64_t head = key_head * args.group;
               args.q = ViewOf(q, b, head);
               args.k = ViewOf(k, b, key_head);
               args.v = ViewOf(v, b, key_head);
               args.out = ViewOf(out, b, head);
               args.lse = LseOf(lse, args, b, q.dim(2), head);
               loops.forward[index](args);
             });
}

void AttentionBackward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& out, const Tensor& lse, const AttentionOptions& options,
                       const Tensor& grad_q, Write write_q, const Tensor& grad_k, Write write_k,
                       const Tensor& grad_v, Write write_v) {
  if (!IsInnermostPacked(grad) || !IsInnermostPacked(q) || !IsInnermostPacked(k) ||
      !IsInnermostPacked(v)) {
    return AttentionBackward(PackInnermost(grad), PackInnermost(q), PackInnermost(k),
                             PackInnermost(v), out, lse, options, grad_q, write_q, grad_k, write_k,
                             grad_v, write_v);
  }
  CheckOperands(q, k, v, out, lse);
  CheckLike(grad, q);
  if (grad_q.defined()) CheckLike(grad_q, q);
  if (grad_k.defined()) CheckLike(grad_k, k);
  if (grad_v.defined()) CheckLike(grad_v, k);
  if (q.numel() == 0) {
    if (grad_k.defined() && write_k == Write::kOverwrite) Fill(grad_k, 0.0);
    if (grad_v.defined() && write_v == Write::kOverwrite) Fill(grad_v, 0.0);
    return;
  }
  AttentionArgs shared = ArgsOf(q, k, options);
  shared.add_q = write_q == Write::kAdd;
  shared.add_k = write_k == Write::kAdd;
  shared.add_v = write_v == Write::kAdd;
  const internal::AttentionLoops& loops = *internal::LoopsOf(q.device()).attention;
  const int index = internal::FloatIndex(q.dtype());
  ForEachJob(q, k, shared, loops.workspace_bytes[index](shared, true),
             [&](AttentionArgs& args, int64_t b, int64_t key_head) {
               const int64_t head = key_head * args.group;
               args.q = ViewOf(q, b, head);
               args.k = ViewOf(k, b, key_head);
               args.v = ViewOf(v, b, key_head);
               args.out = ViewOf(out, b, head);
               args.grad = ViewOf(grad, b, head);
               args.grad_q = ViewOf(grad_q, b, head);
               args.grad_k = ViewOf(grad_k, b, key_head);
               args.grad_v = ViewOf(grad_v, b, key_head);
               args.lse = LseOf(lse, args, b, q.dim(2), head);
               loops.backward[index](args);
             });
}

}  // namespace sherd::kernels
