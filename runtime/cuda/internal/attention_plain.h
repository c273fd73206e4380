#pragma once

#include "sherd/runtime/cuda/internal/attention_args.h"
#include "sherd/runtime/cuda/internal/launch.h"

// Attention of f32 and f64 by fused multiply-adds, in tiles of kTile queries and kTile keys. For
// .cu files.
//
// A block is 16 x 16 threads. Thread (x, y) has rows y + 16 i and columns x + 16 j of a tile of
// scores, and columns x + 16 c of as many rows of a result; kColumns of them cover the head size.
// The 16 threads of a row are half a warp. Operands lie in shared memory in rows of odd length.
// f32, tiles of 32, D 128: 53 KiB of shared memory forward, 75 KiB backward.
namespace sherd::cuda::attention {

constexpr int kPlainThreads = 256;

// Rows of operands in shared memory.
inline __host__ __device__ int PlainPitch(int head_size) { return head_size | 1; }

// Bytes of shared memory for `operands` tiles of rows, `squares` of scores and two numbers a row.
template <typename C, int kTile>
int64_t PlainSharedBytes(int head_size, int operands, int squares) {
  return static_cast<int64_t>(sizeof(C)) *
         (operands * kTile * PlainPitch(head_size) + squares * kTile * (kTile + 1) + 2 * kTile);
}

struct Position {
  int x = static_cast<int>(threadIdx.x) % 16, y = static_cast<int>(threadIdx.x) / 16;
};

// to[r][c] = scale * x[t + r][c] for tokens that `shows` has, zero for others.
template <typename T, int kTile, typename Shows>
__device__ void LoadRows(const Heads& x, const Job& job, int t, int64_t head, int d,
                         Compute<T> scale, Compute<T>* to, const Shows& shows) {
  const int pitch = PlainPitch(d);
  const T* const from = x.At<const T>(job.b, job.first + t, head);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * d; i += kPlainThreads) {
    const int r = i / d, c = i % d;
    to[r * pitch + c] = shows(t + r) ? scale * Widen(from[r * x.token + c]) : Compute<T>(0);
  }
}

// x[t + r][c] (+)= scale * rows for the tokens before `end`.
template <typename T, int kRows, int kColumns>
__device__ void StoreRows(const Heads& x, const Job& job, int t, int end, int64_t head, int d,
                          Compute<T> scale, bool add, const Compute<T> (&rows)[kRows][kColumns]) {
  const Position at;
  T* const to = x.At<T>(job.b, job.first + t, head);
  for (int i = 0; i < kRows; ++i) {
    const int r = at.y + 16 * i;
    if (t + r >= end) continue;
    for (int c = 0; c < kColumns; ++c) {
      const int column = at.x + 16 * c;
      if (column >= d) continue;
      T* const element = to + r * x.token + column;
      add ? Put<true>(element, scale * rows[i][c]) : Put<false>(element, scale * rows[i][c]);
    }
  }
}

// s[i][j] = the product of rows y + 16 i of a and x + 16 j of b.
template <typename C, int kRows>
__device__ void RowProducts(const C* a, const C* b, int d, C (&s)[kRows][kRows]) {
  const Position at;
  const int pitch = PlainPitch(d);
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kRows; ++j) s[i][j] = C(0);
  }
  for (int c = 0; c < d; ++c) {
    C left[kRows], right[kRows];
    for (int i = 0; i < kRows; ++i) left[i] = a[(at.y + 16 * i) * pitch + c];
    for (int j = 0; j < kRows; ++j) right[j] = b[(at.x + 16 * j) * pitch + c];
    for (int i = 0; i < kRows; ++i) {
      for (int j = 0; j < kRows; ++j) s[i][j] += left[i] * right[j];
    }
  }
}

// out[i][c] += the sum over j of p[y + 16 i][j] b[j][x + 16 c].
template <typename C, int kTile, int kColumns>
__device__ void AddProducts(const C* p, const C* b, int d, C (&out)[kTile / 16][kColumns]) {
  constexpr int kRows = kTile / 16;
  const Position at;
  const int pitch = PlainPitch(d);
  for (int j = 0; j < kTile; ++j) {
    C left[kRows];
    for (int i = 0; i < kRows; ++i) left[i] = p[(at.y + 16 * i) * (kTile + 1) + j];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int column = at.x + 16 * c;
      const C right = column < d ? b[j * pitch + column] : C(0);
      for (int i = 0; i < kRows; ++i) out[i][c] += left[i] * right;
    }
  }
}

template <typename C>
__device__ C HalfWarpMost(C value) {
  for (int lanes = 8; lanes > 0; lanes /= 2) {
    const C other = __shfl_xor_sync(0xffffffffu, value, lanes);
    value = other > value ? other : value;
  }
  return value;
}

template <typename C>
__device__ C HalfWarpSum(C value) {
  for (int lanes = 8; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
  return value;
}

// Turns scores into exp(score - most) times what dropout makes of them, in `p`, and rescales what
// was accumulated for the maxima before.
template <typename C, int kTile, int kColumns>
struct PlainSoftmax {
  static constexpr int kRows = kTile / 16;
  C most[kRows], sum[kRows], out[kRows][kColumns];

  __device__ PlainSoftmax() {
    for (int i = 0; i < kRows; ++i) {
      most[i] = -C(__builtin_inff());
      sum[i] = C(0);
      for (int c = 0; c < kColumns; ++c) out[i][c] = C(0);
    }
  }

  __device__ void Add(const Args& args, const Job& job, int64_t head, int k0, C (&s)[kRows][kRows],
                      C* p) {
    constexpr C kNone = -C(__builtin_inff());
    const Position at;
    for (int i = 0; i < kRows; ++i) {
      const int t = job.start + at.y + 16 * i;
      C peak = most[i];
      for (int j = 0; j < kRows; ++j) {
        if (!job.Sees(t, k0 + at.x + 16 * j)) s[i][j] = kNone;
        peak = s[i][j] > peak ? s[i][j] : peak;
      }
      peak = HalfWarpMost(peak);
      const C base = peak == kNone ? C(0) : peak;
      const C alpha = math::Exp(most[i] - base);
      C added = 0;
      for (int j = 0; j < kRows; ++j) {
        const int key = k0 + at.x + 16 * j;
        const C weight = math::Exp(s[i][j] - base);
        added += weight;
        const bool kept =
            !args.dropout.on || args.dropout.Keeps(job.b, head, job.first + t, job.first + key);
        const C factor = args.dropout.on ? static_cast<C>(args.dropout.keep_scale) : C(1);
        p[(at.y + 16 * i) * (kTile + 1) + at.x + 16 * j] = kept ? weight * factor : C(0);
      }
      most[i] = peak;
      sum[i] = sum[i] * alpha + HalfWarpSum(added);
      for (int c = 0; c < kColumns; ++c) out[i][c] *= alpha;
    }
  }
};

// Grid: query slots, heads. Reads each key and value once for each tile of queries that sees it.
template <typename T, int kTile, int kColumns>
__global__ void __launch_bounds__(kPlainThreads) PlainForward(const Args args) {
  using C = Compute<T>;
  constexpr int kRows = kTile / 16;
  SHERD_DYNAMIC_SHARED(C, shared);
  Job job;
  if (!FindJob(args, blockIdx.x, kTile, false, job)) return;
  const int d = args.head_size, operand = kTile * PlainPitch(d);
  C* const q = shared;
  C* const k = q + operand;
  C* const v = k + operand;
  C* const p = v + operand;
  const int64_t head = blockIdx.y, key_head = head / args.group;
  const auto shows = [&](int s) { return job.Shows(s); };
  LoadRows<T, kTile>(args.q, job, job.start, head, d, static_cast<C>(args.scale), q,
                     [&](int t) { return t < job.queries; });
  PlainSoftmax<C, kTile, kColumns> softmax;
  const int end = job.End(min(job.start + kTile, job.queries) - 1);
  for (int k0 = job.key_begin / kTile * kTile; k0 < end; k0 += kTile) {
    __syncthreads();
    LoadRows<T, kTile>(args.k, job, k0, key_head, d, C(1), k, shows);
    LoadRows<T, kTile>(args.v, job, k0, key_head, d, C(1), v, shows);
    __syncthreads();
    C s[kRows][kRows];
    RowProducts<C, kRows>(q, k, d, s);
    softmax.Add(args, job, head, k0, s, p);
    __syncwarp();
    AddProducts<C, kTile, kColumns>(p, v, d, softmax.out);
    __syncwarp();
  }
  const Position at;
  C* const lse = static_cast<C*>(args.lse) + (job.b * args.heads + head) * args.queries + job.first;
  for (int i = 0; i < kRows; ++i) {
    const int t = job.start + at.y + 16 * i;
    // The largest score seen contributes 1, so only a query that sees no key has nothing.
    const C inverse = softmax.sum[i] == C(0) ? C(0) : C(1) / softmax.sum[i];
    for (int c = 0; c < kColumns; ++c) softmax.out[i][c] *= inverse;
    if (at.x == 0 && t < job.queries) lse[t] = softmax.most[i] + math::Log(softmax.sum[i]);
  }
  StoreRows<T, kRows, kColumns>(args.out, job, job.start, job.queries, head, d, C(1), false,
                                softmax.out);
}

// What a probability and its gradient are multiplied into.
template <typename C>
struct PlainGrads {
  C probability, d_score;
};

// Of query t and key s, from their score, the product of grad and v, and the query's numbers.
template <typename C>
__device__ PlainGrads<C> GradScore(const Args& args, const Job& job, int64_t head, int t, int s,
                                   C score, C d_p, C lse, C delta) {
  if (!job.Sees(t, s)) return {C(0), C(0)};
  const C probability = math::Exp(score - lse);
  if (!args.dropout.on) return {probability, probability * (d_p - delta)};
  const bool kept = args.dropout.Keeps(job.b, head, job.first + t, job.first + s);
  const C factor = kept ? static_cast<C>(args.dropout.keep_scale) : C(0);
  return {probability * factor, probability * (d_p * factor - delta)};
}

// The numbers of queries [t, t + kTile), zero behind the last.
template <typename C, int kTile>
__device__ void LoadNumbers(const Args& args, const Job& job, int64_t head, int t, C* lse,
                            C* delta) {
  const int r = static_cast<int>(threadIdx.x);
  if (r >= kTile) return;
  const int64_t at = (job.b * args.heads + head) * args.queries + job.first + t + r;
  const bool real = t + r < job.queries;
  lse[r] = real ? static_cast<const C*>(args.lse)[at] : C(0);
  delta[r] = real ? static_cast<const C*>(args.delta)[at] : C(0);
}

// Grid: query slots, heads. Writes grad_q.
template <typename T, int kTile, int kColumns>
__global__ void __launch_bounds__(kPlainThreads) PlainGradQueries(const Args args) {
  using C = Compute<T>;
  constexpr int kRows = kTile / 16;
  SHERD_DYNAMIC_SHARED(C, shared);
  Job job;
  if (!FindJob(args, blockIdx.x, kTile, false, job)) return;
  const int d = args.head_size, operand = kTile * PlainPitch(d);
  C *const q = shared, *const grad = q + operand, *const k = grad + operand, *const v = k + operand;
  C *const d_s = v + operand, *const lse = d_s + kTile * (kTile + 1), *const delta = lse + kTile;
  const int64_t head = blockIdx.y, key_head = head / args.group;
  const auto real = [&](int t) { return t < job.queries; };
  const auto shows = [&](int s) { return job.Shows(s); };
  LoadRows<T, kTile>(args.q, job, job.start, head, d, static_cast<C>(args.scale), q, real);
  LoadRows<T, kTile>(args.grad, job, job.start, head, d, C(1), grad, real);
  LoadNumbers<C, kTile>(args, job, head, job.start, lse, delta);
  C grad_q[kRows][kColumns] = {};
  const Position at;
  const int end = job.End(min(job.start + kTile, job.queries) - 1);
  for (int k0 = job.key_begin / kTile * kTile; k0 < end; k0 += kTile) {
    __syncthreads();
    LoadRows<T, kTile>(args.k, job, k0, key_head, d, C(1), k, shows);
    LoadRows<T, kTile>(args.v, job, k0, key_head, d, C(1), v, shows);
    __syncthreads();
    C s[kRows][kRows], d_p[kRows][kRows];
    RowProducts<C, kRows>(q, k, d, s);
    RowProducts<C, kRows>(grad, v, d, d_p);
    for (int i = 0; i < kRows; ++i) {
      const int r = at.y + 16 * i;
      for (int j = 0; j < kRows; ++j) {
        const int column = at.x + 16 * j;
        d_s[r * (kTile + 1) + column] = GradScore<C>(args, job, head, job.start + r, k0 + column,
                                                     s[i][j], d_p[i][j], lse[r], delta[r])
                                            .d_score;
      }
    }
    __syncwarp();
    AddProducts<C, kTile, kColumns>(d_s, k, d, grad_q);
    __syncwarp();
  }
  StoreRows<T, kRows, kColumns>(args.grad_q, job, job.start, job.queries, head, d,
                                static_cast<C>(args.scale), args.add_q, grad_q);
}

// Grid: key slots, key heads. Writes grad_k and grad_v, those that are defined.
template <typename T, int kTile, int kColumns>
__global__ void __launch_bounds__(kPlainThreads) PlainGradKeys(const Args args) {
  using C = Compute<T>;
  constexpr int kRows = kTile / 16;
  SHERD_DYNAMIC_SHARED(C, shared);
  Job job;
  if (!FindJob(args, blockIdx.x, kTile, true, job)) return;
  const int d = args.head_size, operand = kTile * PlainPitch(d), square = kTile * (kTile + 1);
  C *const q = shared, *const grad = q + operand, *const k = grad + operand, *const v = k + operand;
  C *const p = v + operand, *const d_s = p + square;
  C *const lse = d_s + square, *const delta = lse + kTile;
  const int64_t key_head = blockIdx.y;
  const auto real = [&](int t) { return t < job.queries; };
  const auto shows = [&](int s) { return job.Shows(s); };
  LoadRows<T, kTile>(args.k, job, job.start, key_head, d, C(1), k, shows);
  LoadRows<T, kTile>(args.v, job, job.start, key_head, d, C(1), v, shows);
  C grad_k[kRows][kColumns] = {}, grad_v[kRows][kColumns] = {};
  const Position at;
  const bool seen = job.start < job.key_end && job.start + kTile > job.key_begin;
  const int first = job.causal ? max(0, job.start - job.shift) / kTile * kTile : 0;
  for (int64_t head = key_head * args.group; seen && head < (key_head + 1) * args.group; ++head) {
    for (int t0 = first; t0 < job.queries; t0 += kTile) {
      __syncthreads();
      LoadRows<T, kTile>(args.q, job, t0, head, d, static_cast<C>(args.scale), q, real);
      LoadRows<T, kTile>(args.grad, job, t0, head, d, C(1), grad, real);
      LoadNumbers<C, kTile>(args, job, head, t0, lse, delta);
      __syncthreads();
      C s[kRows][kRows], d_p[kRows][kRows];
      RowProducts<C, kRows>(k, q, d, s);
      RowProducts<C, kRows>(v, grad, d, d_p);
      for (int i = 0; i < kRows; ++i) {
        const int r = at.y + 16 * i;
        for (int j = 0; j < kRows; ++j) {
          const int column = at.x + 16 * j;
          const PlainGrads<C> g = GradScore<C>(args, job, head, t0 + column, job.start + r, s[i][j],
                                               d_p[i][j], lse[column], delta[column]);
          p[r * (kTile + 1) + column] = g.probability;
          d_s[r * (kTile + 1) + column] = g.d_score;
        }
      }
      __syncwarp();
      if (args.grad_v.data != nullptr) AddProducts<C, kTile, kColumns>(p, grad, d, grad_v);
      if (args.grad_k.data != nullptr) AddProducts<C, kTile, kColumns>(d_s, q, d, grad_k);
      __syncwarp();
    }
  }
  if (args.grad_k.data != nullptr) {
    StoreRows<T, kRows, kColumns>(args.grad_k, job, job.start, job.keys, key_head, d, C(1),
                                  args.add_k, grad_k);
  }
  if (args.grad_v.data != nullptr) {
    StoreRows<T, kRows, kColumns>(args.grad_v, job, job.start, job.keys, key_head, d, C(1),
                                  args.add_v, grad_v);
  }
}

}  // namespace sherd::cuda::attention
