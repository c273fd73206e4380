#include "sherd/runtime/kernels/internal/isa_types.h"
#include "sherd/runtime/kernels/internal/loops.h"
#include "sherd/runtime/kernels/internal/math.h"
#include "sherd/runtime/kernels/internal/micro_gemm.h"
#include "sherd/runtime/kernels/internal/philox.h"
#include "sherd/runtime/kernels/internal/transpose.h"

namespace sherd::kernels::SHERD_ISA {
namespace {

constexpr int64_t kTile = 64;  // queries, and keys, of a tile
constexpr int64_t kStrip =
    16;  // on the diagonal, tiles are cut into strips that stop at their last key

// Buffers of one (batch, key head), cut from the workspace. D is the head size rounded up to
// vectors; columns behind the real ones are zero.
template <typename C>
struct Buffers {
  C* k_blocks;  // per key tile, transposed: [tiles][D][kTile]
  C* v_rows;    // forward: [S][D]
  C* v_blocks;  // backward: as k_blocks
  C* k_rows;    // backward: [S][D]
  C* grad_k;    // backward: [S][D]
  C* grad_v;    // backward: [S][D]
  C* q;         // [kTile][D], times the scale
  C* out;       // [kTile][D]; in backward the gradient of q
  C* grad;      // backward: [kTile][D]
  C* scores;    // [kTile][kTile]
  C* d_scores;  // backward: [kTile][kTile]
  int64_t d;    // the padded head size
};

// Cuts `base`; returns the bytes used, also when `base` is null.
template <typename C>
int64_t Cut(const internal::AttentionArgs& args, bool backward, char* base, Buffers<C>& to) {
  const int64_t d = RoundUp(args.head_size, kLanes<C>);
  const int64_t rows = args.keys * d;
  const int64_t blocks = RoundUp(args.keys, kTile) * d;
  int64_t used = 0;
  const auto take = [&](int64_t elems) {
    C* const at = base == nullptr ? nullptr : reinterpret_cast<C*>(base + used);
    used += RoundUp(elems * static_cast<int64_t>(sizeof(C)), 64);
    return at;
  };
  to.d = d;
  to.k_blocks = take(blocks);
  to.q = take(kTile * d);
  to.out = take(kTile * d);
  to.scores = take(kTile * kTile);
  if (!backward) {
    to.v_rows = take(rows);
    return used;
  }
  to.v_blocks = take(blocks);
  to.k_rows = take(rows);
  to.grad_k = take(rows);
  to.grad_v = take(rows);
  to.grad = take(kTile * d);
  to.d_scores = take(kTile * kTile);
  return used;
}

template <typename T>
int64_t WorkspaceBytes(const internal::AttentionArgs& args, bool backward) {
  Buffers<Compute<T>> buffers;
  return Cut(args, backward, nullptr, buffers);
}

template <typename T>
SHERD_INLINE T* Row(const internal::HeadsView& view, int64_t t, int64_t h) {
  return static_cast<T*>(view.data) + t * view.token + h * view.head;
}

// Unpacks tokens [t, t + n) of head h to rows of `padded` columns.
template <typename T, typename C>
void LoadRows(const internal::HeadsView& view, int64_t t, int64_t n, int64_t h, int64_t d,
              int64_t padded, C scale, C* to) {
  for (int64_t i = 0; i < n; ++i, to += padded) {
    const T* const from = Row<const T>(view, t + i, h);
    SHERD_SIMD for (int64_t c = 0; c < d; ++c) to[c] = scale * Widen(from[c]);
    for (int64_t c = d; c < padded; ++c) to[c] = C(0);
  }
}

// Writes rows of `padded` columns to tokens [t, t + n) of head h.
template <typename T, typename C>
void StoreRows(const internal::HeadsView& view, int64_t t, int64_t n, int64_t h, int64_t d,
               int64_t padded, const C* from, C scale, bool add) {
  for (int64_t i = 0; i < n; ++i, from += padded) {
    T* const to = Row<T>(view, t + i, h);
    if (add) {
      SHERD_SIMD for (int64_t c = 0; c < d; ++c) Put<true>(to + c, scale * from[c]);
    } else {
      SHERD_SIMD for (int64_t c = 0; c < d; ++c) Put<false>(to + c, scale * from[c]);
    }
  }
}

// Unpacks the one key head of `view` to transposed tiles.
template <typename T, typename C>
void LoadTransposed(const internal::HeadsView& view, int64_t keys, int64_t d, int64_t padded,
                    C* to) {
  for (int64_t s0 = 0; s0 < keys; s0 += kTile, to += padded * kTile) {
    const int64_t n = Min(kTile, keys - s0);
    for (int64_t c = 0; c < d; ++c) {
      for (int64_t s = n; s < kTile; ++s) to[c * kTile + s] = C(0);
    }
    Transpose(Row<const T>(view, s0, 0), view.token, n, d, to, kTile);
  }
}

// The part of a tile that a strip of queries sees.
struct Strip {
  int64_t row, rows;  // queries of the tile
  int64_t keys;       // the last of them sees keys [0, keys) of the tile
};

// Which keys of the whole are seen, for query tiles that start at `q0`.
struct Visible {
  int64_t shift;  // query t sees keys s <= t + shift; S - 1 when not causal
  int64_t keys;   // one past the last key that anybody sees

  // One past the last key that query t sees.
  int64_t End(int64_t t) const { return Max(0, Min(keys, t + shift + 1)); }
};

SHERD_INLINE Visible VisibleOf(const internal::AttentionArgs& args) {
  return {args.causal ? args.keys - args.queries : args.keys, args.key_end};
}

SHERD_INLINE int64_t FirstTile(const internal::AttentionArgs& args) {
  return args.key_begin / kTile * kTile;
}

// Whether nobody sees key s, which lies before key_end.
SHERD_INLINE bool IsHidden(const internal::AttentionArgs& args, int64_t s) {
  return s < args.key_begin || (args.key_mask != nullptr && args.key_mask[s] == 0);
}

// The keys of one tile that nobody sees.
struct Hidden {
  bool any;
  bool key[kTile];
};

void FindHidden(const internal::AttentionArgs& args, int64_t k0, Hidden& hidden) {
  hidden.any = false;
  if (args.key_mask == nullptr && k0 >= args.key_begin) return;
  for (int64_t j = 0; j < kTile; ++j) {
    hidden.key[j] = k0 + j < args.key_end && IsHidden(args, k0 + j);
    hidden.any = hidden.any || hidden.key[j];
  }
}

// Sets the elements of hidden keys in rows of a tile.
template <typename C>
void HideKeys(const Hidden& hidden, int64_t rows, int64_t padded, C value, C* scores) {
  for (int64_t r = 0; r < rows; ++r, scores += kTile) {
    for (int64_t j = 0; j < padded; ++j) scores[j] = hidden.key[j] ? value : scores[j];
  }
}

// What lies in hidden keys reaches nobody, not even as NaN times zero.
template <typename C>
void ZeroHidden(const internal::AttentionArgs& args, int64_t d, bool transposed, C* to) {
  if (args.key_mask == nullptr && args.key_begin == 0) return;
  for (int64_t s = FirstTile(args); s < args.key_end; ++s) {
    if (!IsHidden(args, s)) continue;
    C* const first = transposed ? to + s / kTile * kTile * d + s % kTile : to + s * d;
    for (int64_t c = 0; c < d; ++c) first[c * (transposed ? kTile : 1)] = C(0);
  }
}

// What dropout multiplies the probabilities of query t of head h and n keys from k0 with.
template <typename C>
void KeepFactors(const internal::AttentionArgs& args, int64_t h, int64_t t, int64_t k0, int64_t n,
                 C* factors) {
  const int64_t key = args.first_token + k0, skip = key % 4;
  alignas(64) Word words[2 * kTile];
  PhiloxWords(args.random_key, args.sample,
              static_cast<uint64_t>(args.first_head + h) << 52 |
                  static_cast<uint64_t>(args.first_token + t) << 26 |
                  static_cast<uint64_t>(key / 4),
              (skip + n + 3) / 4, words);
  const C keep = static_cast<C>(args.keep_scale);
  for (int64_t j = 0; j < n; ++j) factors[j] = words[skip + j] >= args.threshold ? keep : C(0);
}

// Calls f(strip) for the strips of a tile of `rows` queries from q0 and the keys from k0.
template <typename F>
SHERD_INLINE void ForEachStrip(const Visible& visible, int64_t q0, int64_t rows, int64_t k0, F f) {
  const bool whole = visible.End(q0) >= Min(k0 + kTile, visible.keys);
  const int64_t step = whole ? rows : kStrip;
  for (int64_t r = 0; r < rows; r += step) {
    const int64_t n = Min(step, rows - r);
    const int64_t keys = Min(kTile, visible.End(q0 + r + n - 1) - k0);
    if (keys > 0) f(Strip{r, n, keys});
  }
}

// What the online softmax knows of each query of a tile.
template <typename C>
struct Running {
  C most[kTile];  // the largest score so far
  C sum[kTile];   // of exp(score - most)
};

// Turns the scores of a strip into exp(score - most) in place and rescales what was accumulated for
// the maxima before. `end` gives the keys each query sees; up to `padded` the rest is zeroed.
template <typename C, typename End>
SHERD_INLINE void SoftmaxStrip(Strip strip, int64_t padded, End end, C* scores, Running<C>& running,
                               C* out, int64_t d) {
  constexpr C kNone = -C(__builtin_inff());
  C base[kTile], alpha[kTile];
  C* const most = running.most + strip.row;
  C* const sum = running.sum + strip.row;
  for (int64_t r = 0; r < strip.rows; ++r) {
    C* const s = scores + r * kTile;
    for (int64_t j = end(strip.row + r); j < padded; ++j) s[j] = kNone;
    C peak = most[r];
    _Pragma("omp simd reduction(max:peak)") for (int64_t j = 0; j < padded; ++j) {
      peak = s[j] > peak ? s[j] : peak;
    }
    base[r] = peak;
  }
  SHERD_SIMD for (int64_t r = 0; r < strip.rows; ++r) {
    const C peak = base[r];
    base[r] = peak == kNone ? C(0) : peak;
    alpha[r] = Exp(most[r] - base[r]);
    most[r] = peak;
  }
  for (int64_t r = 0; r < strip.rows; ++r) {
    C* const s = scores + r * kTile;
    C added = 0;
    _Pragma("omp simd reduction(+:added)") for (int64_t j = 0; j < padded; ++j) {
      const C p = Exp(s[j] - base[r]);
      s[j] = p;
      added += p;
    }
    sum[r] = sum[r] * alpha[r] + added;
    SHERD_SIMD for (int64_t c = 0; c < d; ++c) out[r * d + c] *= alpha[r];
  }
}

template <typename C>
void DropStrip(const internal::AttentionArgs& args, Strip strip, int64_t h, int64_t q0, int64_t k0,
               C* scores) {
  C factors[kTile];
  for (int64_t r = 0; r < strip.rows; ++r, scores += kTile) {
    KeepFactors<C>(args, h, q0 + strip.row + r, k0, strip.keys, factors);
    SHERD_SIMD for (int64_t j = 0; j < strip.keys; ++j) scores[j] *= factors[j];
  }
}

// One tile of queries of head h against all keys it sees.
template <typename T>
void ForwardTile(const internal::AttentionArgs& args, const Buffers<Compute<T>>& at, int64_t h,
                 int64_t q0, int64_t rows) {
  using C = Compute<T>;
  const int64_t d = at.d;
  const Visible visible = VisibleOf(args);
  Running<C> running;
  for (int64_t r = 0; r < rows; ++r) running.most[r] = -C(__builtin_inff());
  for (int64_t r = 0; r < rows; ++r) running.sum[r] = 0;
  for (int64_t i = 0; i < rows * d; ++i) at.out[i] = 0;
  LoadRows<T>(args.q, q0, rows, h, args.head_size, d, static_cast<C>(args.scale), at.q);
  const int64_t end = visible.End(q0 + rows - 1);
  Hidden hidden;
  for (int64_t k0 = FirstTile(args); k0 < end; k0 += kTile) {
    FindHidden(args, k0, hidden);
    ForEachStrip(visible, q0, rows, k0, [&](Strip strip) {
      const int64_t padded = RoundUp(strip.keys, kLanes<C>);
      C* const scores = at.scores + strip.row * kTile;
      C* const out = at.out + strip.row * d;
      SmallGemm<C>(strip.rows, padded, args.head_size, {at.q + strip.row * d, d, 1},
                   at.k_blocks + k0 * d, kTile, scores, kTile, false);
      const auto seen = [&](int64_t row) {
        return Max(0, Min(strip.keys, visible.End(q0 + row) - k0));
      };
      if (hidden.any) HideKeys<C>(hidden, strip.rows, padded, -C(__builtin_inff()), scores);
      SoftmaxStrip<C>(strip, padded, seen, scores, running, out, d);
      if (args.dropout) DropStrip<C>(args, strip, h, q0, k0, scores);
      SmallGemm<C>(strip.rows, d, strip.keys, {scores, kTile, 1}, at.v_rows + k0 * d, d, out, d,
                   true);
    });
  }
  C* const lse = static_cast<C*>(args.lse) + h * args.lse_head + q0;
  for (int64_t r = 0; r < rows; ++r) {
    // The largest score seen contributes 1, so only a query that sees no key has nothing.
    const C inv = running.sum[r] == C(0) ? C(0) : C(1) / running.sum[r];
    lse[r] = running.most[r] + static_cast<C>(__builtin_log(static_cast<double>(running.sum[r])));
    SHERD_SIMD for (int64_t c = 0; c < d; ++c) at.out[r * d + c] *= inv;
  }
  StoreRows<T, C>(args.out, q0, rows, h, args.head_size, d, at.out, C(1), false);
}

template <typename T>
void Forward(const internal::AttentionArgs& args) {
  using C = Compute<T>;
  Buffers<C> at;
  Cut(args, false, static_cast<char*>(args.workspace), at);
  LoadTransposed<T>(args.k, args.key_end, args.head_size, at.d, at.k_blocks);
  LoadRows<T>(args.v, 0, args.key_end, 0, args.head_size, at.d, C(1), at.v_rows);
  ZeroHidden(args, at.d, true, at.k_blocks);
  ZeroHidden(args, at.d, false, at.v_rows);
  for (int64_t h = 0; h < args.group; ++h) {
    for (int64_t q0 = 0; q0 < args.queries; q0 += kTile) {
      ForwardTile<T>(args, at, h, q0, Min(kTile, args.queries - q0));
    }
  }
}

// delta[r] = sum over channels of grad * out.
template <typename T, typename C>
void RowDots(const internal::AttentionArgs& args, const C* grad, int64_t padded, int64_t h,
             int64_t q0, int64_t rows, C* delta) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* const out = Row<const T>(args.out, q0 + r, h);
    C dot = 0;
    _Pragma("omp simd reduction(+:dot)") for (int64_t c = 0; c < args.head_size; ++c) {
      dot += grad[r * padded + c] * Widen(out[c]);
    }
    delta[r] = dot;
  }
}

// The scores of a strip become probabilities, and their gradients those of the scaled scores.
template <typename C>
SHERD_INLINE void GradScoresRow(C* p, C* d_p, int64_t seen, int64_t padded, C lse, C delta) {
  SHERD_SIMD for (int64_t j = 0; j < padded; ++j) {
    const C probability = Exp(p[j] - lse);
    p[j] = probability;
    d_p[j] = probability * (d_p[j] - delta);
  }
  for (int64_t j = seen; j < padded; ++j) p[j] = d_p[j] = C(0);
}

// The same with dropout: what grad_v reads is dropped, the softmax's own gradient is not.
template <typename C>
void GradScoresDropped(C* p, C* d_p, const C* factors, int64_t seen, int64_t padded, C lse,
                       C delta) {
  SHERD_SIMD for (int64_t j = 0; j < seen; ++j) {
    const C probability = Exp(p[j] - lse);
    p[j] = probability * factors[j];
    d_p[j] = probability * (d_p[j] * factors[j] - delta);
  }
  for (int64_t j = seen; j < padded; ++j) p[j] = d_p[j] = C(0);
}

// Adds one tile's share to grad_k and grad_v. Keys are walked in strips too: on the diagonal a key
// is seen only by queries from `first` on.
template <typename C>
void AddKeyGradients(const internal::AttentionArgs& args, const Buffers<C>& at,
                     const Visible& visible, int64_t q0, int64_t rows, int64_t k0) {
  const int64_t d = at.d;
  const int64_t keys = Min(kTile, visible.End(q0 + rows - 1) - k0);
  const bool whole = visible.End(q0) >= Min(k0 + kTile, visible.keys);
  const int64_t step = whole ? keys : kStrip;
  for (int64_t s = 0; s < keys; s += step) {
    const int64_t n = Min(step, keys - s);
    // Strips of queries that see none of these keys were not computed; the rest holds zeros.
    const int64_t first = whole ? 0 : Max(0, (k0 + s - visible.shift - q0)) / kStrip * kStrip;
    const int64_t k = rows - first;
    C* const p = at.scores + first * kTile + s;
    C* const d_s = at.d_scores + first * kTile + s;
    if (args.grad_v.data != nullptr) {
      SmallGemm<C>(n, d, k, {p, 1, kTile}, at.grad + first * d, d, at.grad_v + (k0 + s) * d, d,
                   true);
    }
    if (args.grad_k.data != nullptr) {
      SmallGemm<C>(n, d, k, {d_s, 1, kTile}, at.q + first * d, d, at.grad_k + (k0 + s) * d, d,
                   true);
    }
  }
}

template <typename T>
void BackwardTile(const internal::AttentionArgs& args, const Buffers<Compute<T>>& at, int64_t h,
                  int64_t q0, int64_t rows) {
  using C = Compute<T>;
  const int64_t d = at.d;
  const Visible visible = VisibleOf(args);
  C delta[kTile];
  LoadRows<T>(args.q, q0, rows, h, args.head_size, d, static_cast<C>(args.scale), at.q);
  LoadRows<T>(args.grad, q0, rows, h, args.head_size, d, C(1), at.grad);
  RowDots<T>(args, static_cast<const C*>(at.grad), d, h, q0, rows, delta);
  for (int64_t i = 0; i < rows * d; ++i) at.out[i] = 0;
  const C* const lse = static_cast<const C*>(args.lse) + h * args.lse_head + q0;
  const int64_t end = visible.End(q0 + rows - 1);
  Hidden hidden;
  for (int64_t k0 = FirstTile(args); k0 < end; k0 += kTile) {
    FindHidden(args, k0, hidden);
    ForEachStrip(visible, q0, rows, k0, [&](Strip strip) {
      // On the diagonal the transposed products below read a strip of keys past the last one seen.
      const int64_t padded = Min(kTile, RoundUp(strip.keys, Max(kStrip, kLanes<C>)));
      C* const p = at.scores + strip.row * kTile;
      C* const d_p = at.d_scores + strip.row * kTile;
      SmallGemm<C>(strip.rows, padded, args.head_size, {at.q + strip.row * d, d, 1},
                   at.k_blocks + k0 * d, kTile, p, kTile, false);
      SmallGemm<C>(strip.rows, padded, args.head_size, {at.grad + strip.row * d, d, 1},
                   at.v_blocks + k0 * d, kTile, d_p, kTile, false);
      for (int64_t r = 0; r < strip.rows; ++r) {
        const int64_t row = strip.row + r;
        const int64_t seen = Max(0, Min(strip.keys, visible.End(q0 + row) - k0));
        C* const p_r = p + r * kTile;
        C* const d_p_r = d_p + r * kTile;
        if (args.dropout) {
          C factors[kTile];
          KeepFactors<C>(args, h, q0 + row, k0, seen, factors);
          GradScoresDropped<C>(p_r, d_p_r, factors, seen, padded, lse[row], delta[row]);
        } else {
          GradScoresRow<C>(p_r, d_p_r, seen, padded, lse[row], delta[row]);
        }
      }
      if (hidden.any) {
        HideKeys<C>(hidden, strip.rows, padded, C(0), p);
        HideKeys<C>(hidden, strip.rows, padded, C(0), d_p);
      }
      if (args.grad_q.data != nullptr) {
        SmallGemm<C>(strip.rows, d, strip.keys, {d_p, kTile, 1}, at.k_rows + k0 * d, d,
                     at.out + strip.row * d, d, true);
      }
    });
    AddKeyGradients<C>(args, at, visible, q0, rows, k0);
  }
  if (args.grad_q.data != nullptr) {
    StoreRows<T, C>(args.grad_q, q0, rows, h, args.head_size, d, at.out, static_cast<C>(args.scale),
                    args.add_q);
  }
}

template <typename T>
void Backward(const internal::AttentionArgs& args) {
  using C = Compute<T>;
  Buffers<C> at;
  Cut(args, true, static_cast<char*>(args.workspace), at);
  LoadTransposed<T>(args.k, args.key_end, args.head_size, at.d, at.k_blocks);
  LoadTransposed<T>(args.v, args.key_end, args.head_size, at.d, at.v_blocks);
  LoadRows<T>(args.k, 0, args.key_end, 0, args.head_size, at.d, C(1), at.k_rows);
  ZeroHidden(args, at.d, true, at.k_blocks);
  ZeroHidden(args, at.d, true, at.v_blocks);
  ZeroHidden(args, at.d, false, at.k_rows);
  for (int64_t i = 0; i < args.keys * at.d; ++i) at.grad_k[i] = at.grad_v[i] = 0;
  for (int64_t h = 0; h < args.group; ++h) {
    for (int64_t q0 = 0; q0 < args.queries; q0 += kTile) {
      BackwardTile<T>(args, at, h, q0, Min(kTile, args.queries - q0));
    }
  }
  const auto store = [&](const internal::HeadsView& view, const C* from, bool add) {
    if (view.data == nullptr) return;
    StoreRows<T, C>(view, 0, args.keys, 0, args.head_size, at.d, from, C(1), add);
  };
  store(args.grad_k, at.grad_k, args.add_k);
  store(args.grad_v, at.grad_v, args.add_v);
}

}  // namespace

extern const internal::AttentionLoops kAttentionLoops;
const internal::AttentionLoops kAttentionLoops = {
    .workspace_bytes = SHERD_FLOATS(WorkspaceBytes),
    .forward = SHERD_FLOATS(Forward),
    .backward = SHERD_FLOATS(Backward),
};

}  // namespace sherd::kernels::SHERD_ISA
