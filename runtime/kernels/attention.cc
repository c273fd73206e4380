#include "sherd/runtime/kernels/attention.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/attention_operands.h"
#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

using internal::AttentionArgs;
using internal::HeadsView;

std::vector<int64_t> Integers(const Tensor& x) {
  SHERD_CHECK((x.dtype() == DType::kI32 || x.dtype() == DType::kI64),
              "a mask of attention is neither i32 nor i64");
  if (x.dtype() == DType::kI64) return x.ToHost<int64_t>();
  const std::vector<int32_t> narrow = x.ToHost<int32_t>();
  return {narrow.begin(), narrow.end()};
}

// Tokens that attend to each other: a row, or a document of one.
struct Segment {
  int64_t b, first;  // the batch entry and the first token in it
  int64_t queries, keys;
  int64_t key_begin, key_end;  // keys that somebody sees, counted from `first`
  const uint8_t* key_mask = nullptr;
};

// Heads [head, ...) of a run of tokens of a [B, T, H, D]; null when the tensor is undefined.
HeadsView ViewOf(const Tensor& x, const Segment& s, int64_t head) {
  if (!x.defined()) return {nullptr, 0, 0};
  const int64_t offset = s.b * x.strides()[0] + s.first * x.strides()[1] + head * x.strides()[2];
  return {internal::Address(x) + offset * SizeOf(x.dtype()), x.strides()[1], x.strides()[2]};
}

// What there is to compute, in runs of tokens.
class Segments {
 public:
  Segments(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
    if (options.cu_seqlens.defined()) {
      SHERD_CHECK(
          !options.key_mask.defined() && !options.key_lengths.defined() && q.dim(1) == k.dim(1),
          "packed attention has masks or keys of its own");
      AddDocuments(q, Integers(options.cu_seqlens));
      return;
    }
    AddRows(q, k);
    if (options.key_lengths.defined()) CutLengths(k, Integers(options.key_lengths));
    if (options.key_mask.defined()) CutMask(k, Integers(options.key_mask));
  }

  const std::vector<Segment>& all() const { return all_; }
  int64_t longest() const { return longest_; }

 private:
  void Add(const Segment& segment) {
    all_.push_back(segment);
    longest_ = std::max(longest_, segment.keys);
  }

  void AddRows(const Tensor& q, const Tensor& k) {
    for (int64_t b = 0; b < q.dim(0); ++b) Add({b, 0, q.dim(1), k.dim(1), 0, k.dim(1)});
  }

  void AddDocuments(const Tensor& q, std::vector<int64_t> ends) {
    const int64_t tokens = q.dim(1), all = q.dim(0) * tokens;
    if (ends.empty() || ends[0] != 0 || !std::is_sorted(ends.begin(), ends.end()) ||
        ends.back() > all) {
      ThrowInvalidArgument(
          absl::StrCat("cu_seqlens ascend from 0 to at most the ", all, " tokens of ", q.ToString(),
                       ", they are ", absl::StrJoin(ends, ", ")),
          {.op = "attention"});
    }
    const int64_t last = ends.back();
    if (last < all) ends.push_back(all);
    for (size_t i = 1; i < ends.size(); ++i) {
      for (int64_t begin = ends[i - 1]; begin < ends[i];) {
        const int64_t row = begin / tokens;
        const int64_t n = std::min(ends[i], (row + 1) * tokens) - begin;
        Add({row, begin % tokens, n, n, 0, begin < last ? n : 0});
        begin += n;
      }
    }
  }

  void CutLengths(const Tensor& k, const std::vector<int64_t>& lengths) {
    SHERD_CHECK(static_cast<int64_t>(lengths.size()) == k.dim(0), "key lengths do not fit");
    for (size_t b = 0; b < lengths.size(); ++b) {
      if (lengths[b] < 0 || lengths[b] > k.dim(1)) {
        ThrowInvalidArgument(absl::StrCat("key length ", lengths[b], " of row ", b,
                                          " is outside [0, ", k.dim(1), "]"),
                             {.op = "attention"});
      }
      all_[b].key_end = lengths[b];
    }
  }

  void CutMask(const Tensor& k, const std::vector<int64_t>& mask) {
    const int64_t keys = k.dim(1);
    SHERD_CHECK(static_cast<int64_t>(mask.size()) == k.dim(0) * keys, "the key mask does not fit");
    mask_.resize(mask.size());
    std::transform(mask.begin(), mask.end(), mask_.begin(), [](int64_t x) { return x != 0; });
    for (Segment& segment : all_) {
      const uint8_t* const row = mask_.data() + segment.b * keys;
      int64_t &begin = segment.key_begin, &end = segment.key_end;
      while (end > 0 && row[end - 1] == 0) --end;
      while (begin < end && row[begin] == 0) ++begin;
      if (std::count(row + begin, row + end, 0) > 0) segment.key_mask = row;
    }
  }

  std::vector<Segment> all_;
  std::vector<uint8_t> mask_;
  int64_t longest_ = 0;
};

// What is the same in every job.
AttentionArgs ArgsOf(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  AttentionArgs args = {};
  args.head_size = q.dim(3);
  args.group = q.dim(2) / k.dim(2);
  args.causal = options.causal;
  args.scale = options.scale;
  args.lse_head = q.dim(1);
  const internal::AttentionDropout dropout = internal::DropoutOf(q, k, options);
  args.dropout = dropout.on;
  args.threshold = dropout.threshold;
  args.keep_scale = dropout.keep_scale;
  args.random_key = options.random_key;
  return args;
}

// The operands of all jobs.
struct Operands {
  const Tensor &q, &k, &v, &out, &lse;
  const Tensor &grad, &grad_q, &grad_k, &grad_v;  // of a backward, else undefined
};

// Runs `loop` for every segment and key head.
void ForEachJob(const Operands& x, const AttentionOptions& options, AttentionArgs shared,
                int64_t (*workspace_bytes)(const AttentionArgs&, bool), bool backward,
                void (*loop)(const AttentionArgs&)) {
  const Segments segments(x.q, x.k, options);
  const int64_t key_heads = x.k.dim(2), heads = x.q.dim(2);
  shared.keys = segments.longest();
  const int64_t bytes = workspace_bytes(shared, backward);
  const auto jobs = static_cast<int64_t>(segments.all().size()) * key_heads;
  x.q.device().pool().ParallelFor(jobs, 1, [&](int64_t begin, int64_t end) {
    const internal::Workspace workspace(x.q.device(), bytes);
    AttentionArgs args = shared;
    args.workspace = workspace.data();
    for (int64_t job = begin; job < end; ++job) {
      const Segment& s = segments.all()[static_cast<size_t>(job / key_heads)];
      const int64_t key_head = job % key_heads, head = key_head * args.group;
      args.queries = s.queries;
      args.keys = s.keys;
      args.key_begin = s.key_begin;
      args.key_end = s.key_end;
      args.key_mask = s.key_mask;
      args.first_head = head;
      args.first_token = s.first;
      if (args.dropout) {
        args.sample = static_cast<uint64_t>(options.row_samples[static_cast<size_t>(s.b)]);
      }
      args.q = ViewOf(x.q, s, head);
      args.k = ViewOf(x.k, s, key_head);
      args.v = ViewOf(x.v, s, key_head);
      args.out = ViewOf(x.out, s, head);
      args.lse = internal::Address(x.lse) +
                 ((s.b * heads + head) * args.lse_head + s.first) * SizeOf(x.lse.dtype());
      args.grad = ViewOf(x.grad, s, head);
      args.grad_q = ViewOf(x.grad_q, s, head);
      args.grad_k = ViewOf(x.grad_k, s, key_head);
      args.grad_v = ViewOf(x.grad_v, s, key_head);
      loop(args);
    }
  });
}

}  // namespace

void Attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options,
               const Tensor& out, const Tensor& lse) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Attention(q, k, v, options, out, lse);
  }
  if (!IsInnermostPacked(q) || !IsInnermostPacked(k) || !IsInnermostPacked(v)) {
    return Attention(PackInnermost(q), PackInnermost(k), PackInnermost(v), options, out, lse);
  }
  internal::CheckAttention(q, k, v, out, lse);
  if (q.numel() == 0) return;
  const internal::AttentionLoops& loops = *internal::LoopsOf(q.device()).attention;
  const int index = internal::FloatIndex(q.dtype());
  const Tensor none;
  ForEachJob({q, k, v, out, lse, none, none, none, none}, options, ArgsOf(q, k, options),
             loops.workspace_bytes[index], false, loops.forward[index]);
}

void AttentionBackward(const Tensor& grad, const Tensor& q, const Tensor& k, const Tensor& v,
                       const Tensor& out, const Tensor& lse, const AttentionOptions& options,
                       const Tensor& grad_q, Write write_q, const Tensor& grad_k, Write write_k,
                       const Tensor& grad_v, Write write_v) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->AttentionBackward(grad, q, k, v, out, lse, options, grad_q, write_q, grad_k,
                                    write_k, grad_v, write_v);
  }
  if (!IsInnermostPacked(grad) || !IsInnermostPacked(q) || !IsInnermostPacked(k) ||
      !IsInnermostPacked(v)) {
    return AttentionBackward(PackInnermost(grad), PackInnermost(q), PackInnermost(k),
                             PackInnermost(v), out, lse, options, grad_q, write_q, grad_k, write_k,
                             grad_v, write_v);
  }
  internal::CheckAttention(q, k, v, out, lse);
  internal::CheckLike(grad, q);
  internal::CheckLike(grad_q, q);
  internal::CheckLike(grad_k, k);
  internal::CheckLike(grad_v, k);
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
  ForEachJob({q, k, v, out, lse, grad, grad_q, grad_k, grad_v}, options, shared,
             loops.workspace_bytes[index], true, loops.backward[index]);
}

}  // namespace sherd::kernels
