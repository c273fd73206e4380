#pragma once

#include "sherd/runtime/cuda/internal/attention_args.h"
#include "sherd/runtime/cuda/internal/launch.h"
#include "sherd/runtime/cuda/internal/mma.h"

// Attention of bf16 and f16 on tensor cores, in tiles of 64 queries and 64 keys. For .cu files.
//
// A block is four warps; each has 16 rows of a tile: queries forward and for grad_q, keys for
// grad_k and grad_v. Operands lie in shared memory in rows of kD + 8 elements, so that the eight
// rows a fragment comes from start in different banks; kD is the head size rounded up to 64, 128 or
// 256 and the rest is zero. Scores, their softmax and all sums are f32 and stay in registers, where
// probabilities and gradients of scores are rounded to 16 bits to be multiplied again; no two
// threads add to one number, so bits repeat.
//
// For kD of 64, 128, 256: registers of a thread and blocks a multiprocessor, compiled for sm_90,
// and KiB of shared memory. Nobody ran it on a device yet, so tiles are not tuned.
//   forward             125, 165, 254    4, 3, 2    28, 52, 100
//   grad_q              166, 242, 254    3, 2, 1    37, 69, 133
//   grad_k and grad_v   191, 255, 255    2, 2, 1    37, 69, 133   (68 bytes spilled at 128)
// Source: Dao 2023, "FlashAttention-2".
namespace sherd::cuda::attention {

constexpr int kMmaThreads = 128;
constexpr int kMmaTile = 64;
constexpr int kMmaGradColumns = 128;  // of grad_k and grad_v that a block has registers for

// Bytes of shared memory for tiles of operands, and two numbers for each query of a tile.
template <typename T, int kD>
constexpr int64_t MmaSharedBytes(int operands) {
  return operands * kMmaTile * (kD + 8) * static_cast<int64_t>(sizeof(T)) +
         2 * kMmaTile * static_cast<int64_t>(sizeof(float));
}

// Where a lane's numbers of a 16 x 8 tile d lie: rows row and row + 8, columns column, column + 1.
struct Lane {
  int row = static_cast<int>(threadIdx.x) % 32 / 4;
  int column = static_cast<int>(threadIdx.x) % 4 * 2;
  int first = static_cast<int>(threadIdx.x) / 32 * 16;  // of the warp's rows of a tile
};

// Scores of 16 rows and 64 columns: [n][i] is row `row` + 8 (i / 2), column 8 n + `column` + i % 2.
using Scores = float[kMmaTile / 8][4];

// Tokens [t, t + 64) of a head in shared memory; those that `shows` does not have are zero.
template <typename T, int kD, typename Shows>
__device__ void LoadTile(const Heads& x, const Job& job, int t, int64_t head, int d, T* to,
                         const Shows& shows) {
  const T* const from = x.At<const T>(job.b, job.first + t, head);
  for (int i = static_cast<int>(threadIdx.x); i < kMmaTile * (kD / 8); i += kMmaThreads) {
    const int r = i / (kD / 8), c = i % (kD / 8) * 8;
    T* const place = to + r * (kD + 8) + c;
    const bool real = c < d && shows(t + r);
    const T* const at = from + r * x.token + c;
    if (real && !x.aligned) {
      for (int e = 0; e < 8; ++e) place[e] = c + e < d ? at[e] : T{};
    } else {
      const uint4 zero = make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(place) = real ? *reinterpret_cast<const uint4*>(at) : zero;
    }
  }
}

// s = a b^T for the warp's rows of a and the 64 rows of b.
template <typename T, int kD>
__device__ __forceinline__ void MultiplyRows(const T* a, const T* b, Scores& s) {
  constexpr int kPitch = kD + 8;
#pragma unroll
  for (int n = 0; n < kMmaTile / 8; ++n) {
    for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
  }
#pragma unroll
  for (int c = 0; c < kD; c += 16) {
    uint32_t left[4];
    LoadA(left, a + Lane{}.first * kPitch + c, kPitch);
#pragma unroll
    for (int n = 0; n < kMmaTile / 8; n += 2) {
      PairOfB right;
      LoadTransposedB(right, b + n * 8 * kPitch + c, kPitch);
      MultiplyAddPair<T>(s[n], s[n + 1], left, right);
    }
  }
}

// out += p b for the warp's rows of p, rounded to T, and columns of the 64 rows of b.
template <typename T, int kPitch, int kColumns>
__device__ __forceinline__ void AddTileProduct(const Scores& p, const T* b,
                                               float (&out)[kColumns / 8][4]) {
#pragma unroll
  for (int j = 0; j < kMmaTile / 16; ++j) {
    const uint32_t left[4] = {PackPair<T>(p[2 * j][0], p[2 * j][1]),
                              PackPair<T>(p[2 * j][2], p[2 * j][3]),
                              PackPair<T>(p[2 * j + 1][0], p[2 * j + 1][1]),
                              PackPair<T>(p[2 * j + 1][2], p[2 * j + 1][3])};
#pragma unroll
    for (int n = 0; n < kColumns / 8; n += 2) {
      PairOfB right;
      LoadB(right, b + j * 16 * kPitch + n * 8, kPitch);
      MultiplyAddPair<T>(out[n], out[n + 1], left, right);
    }
  }
}

// x[t + row][column] (+)= factor * out for the warp's tokens before `end`, `first` the first
// column.
template <typename T, int kColumns>
__device__ void StoreTile(const Heads& x, const Job& job, int end, int64_t head, int first, int d,
                          const float (&factor)[2], bool add, const float (&out)[kColumns / 8][4]) {
  const Lane lane;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int t = job.start + lane.first + lane.row + 8 * half;
    if (t >= end) continue;
    T* const row = x.At<T>(job.b, job.first + t, head);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      for (int e = 0; e < 2; ++e) {
        const int c = first + n * 8 + lane.column + e;
        if (c >= d) continue;
        const float value = factor[half] * out[n][2 * half + e];
        add ? Put<true>(row + c, value) : Put<false>(row + c, value);
      }
    }
  }
}

// What the online softmax knows of a lane's two rows; a row's four lanes know the same.
struct MmaSoftmax {
  float most[2] = {-__builtin_inff(), -__builtin_inff()};  // the largest score, over ln 2
  float sum[2] = {0.0f, 0.0f};                             // of 2^(score / ln 2 - most)
};

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// Scales the scores of 16 queries and 64 keys from k0 and hides those that a query does not see.
__device__ inline void ScaleScores(const Args& args, const Job& job, int k0, Scores& s) {
  const Lane lane;
  const float scale = static_cast<float>(args.scale) * kLog2E;
  const bool whole = job.SeesWhole(job.start, k0, kMmaTile);
#pragma unroll
  for (int n = 0; n < kMmaTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = job.start + lane.first + lane.row + 8 * (i / 2);
      const int key = k0 + n * 8 + lane.column + i % 2;
      s[n][i] = whole || job.Sees(t, key) ? s[n][i] * scale : -__builtin_inff();
    }
  }
}

// Turns scaled scores into 2^(score - most), and gives what sums for the maxima before are to be
// multiplied with.
__device__ inline void AddScores(Scores& s, MmaSoftmax& softmax, float (&alpha)[2]) {
  constexpr float kNone = -__builtin_inff();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float peak = softmax.most[half];
#pragma unroll
    for (int n = 0; n < kMmaTile / 8; ++n) {
      peak = s[n][2 * half] > peak ? s[n][2 * half] : peak;
      peak = s[n][2 * half + 1] > peak ? s[n][2 * half + 1] : peak;
    }
    for (int lanes = 1; lanes < 4; lanes *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, peak, lanes);
      peak = other > peak ? other : peak;
    }
    const float base = peak == kNone ? 0.0f : peak;
    alpha[half] = FastExp2(softmax.most[half] - base);
    softmax.most[half] = peak;
    float added = 0.0f;
#pragma unroll
    for (int n = 0; n < kMmaTile / 8; ++n) {
      s[n][2 * half] = FastExp2(s[n][2 * half] - base);
      s[n][2 * half + 1] = FastExp2(s[n][2 * half + 1] - base);
      added += s[n][2 * half] + s[n][2 * half + 1];
    }
    for (int lanes = 1; lanes < 4; lanes *= 2) {
      added += __shfl_xor_sync(0xffffffffu, added, lanes);
    }
    softmax.sum[half] = softmax.sum[half] * alpha[half] + added;
  }
}

// Which of a lane's 32 scores dropout keeps, bit 4 n + i for [n][i]; all without dropout. Rows are
// queries from t0 and columns keys from k0, or, kTurned, the other way round. A loop, since
// unrolled it would be most of the code.
template <bool kTurned>
__device__ __forceinline__ uint32_t KeptScores(const Args& args, const Job& job, int64_t head,
                                               int t0, int k0) {
  if (!args.dropout.on) return 0xffffffffu;
  const Lane lane;
  uint32_t kept = 0;
#pragma unroll 1
  for (int bit = 0; bit < 4 * (kMmaTile / 8); ++bit) {
    const int row = lane.first + lane.row + 8 * (bit % 4 / 2);
    const int column = bit / 4 * 8 + lane.column + bit % 2;
    const int query = kTurned ? column : row, key = kTurned ? row : column;
    if (args.dropout.Keeps(job.b, head, job.first + t0 + query, job.first + k0 + key)) {
      kept |= 1u << bit;
    }
  }
  return kept;
}

// Multiplies probabilities with what dropout makes of them.
__device__ inline void DropScores(const Args& args, const Job& job, int64_t head, int k0,
                                  Scores& p) {
  const float factor = static_cast<float>(args.dropout.keep_scale);
  const uint32_t kept = KeptScores<false>(args, job, head, job.start, k0);
#pragma unroll
  for (int n = 0; n < kMmaTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[n][i] = (kept >> (4 * n + i) & 1u) != 0 ? p[n][i] * factor : 0.0f;
  }
}

// Grid: query slots, heads.
template <typename T, int kD>
__global__ void __launch_bounds__(kMmaThreads) MmaForward(const Args args) {
  constexpr int kPitch = kD + 8, kOperand = kMmaTile * kPitch;
  SHERD_DYNAMIC_SHARED(T, shared);
  Job job;
  if (!FindJob(args, blockIdx.x, kMmaTile, false, job)) return;
  T *const q = shared, *const k = q + kOperand, *const v = k + kOperand;
  const int64_t head = blockIdx.y, key_head = head / args.group;
  const int d = args.head_size;
  const auto shows = [&](int s) { return job.Shows(s); };
  LoadTile<T, kD>(args.q, job, job.start, head, d, q, [&](int t) { return t < job.queries; });
  MmaSoftmax softmax;
  float out[kD / 8][4] = {};
  const int end = job.End(min(job.start + kMmaTile, job.queries) - 1);
  for (int k0 = job.key_begin / kMmaTile * kMmaTile; k0 < end; k0 += kMmaTile) {
    __syncthreads();
    LoadTile<T, kD>(args.k, job, k0, key_head, d, k, shows);
    LoadTile<T, kD>(args.v, job, k0, key_head, d, v, shows);
    __syncthreads();
    Scores s;
    MultiplyRows<T, kD>(q, k, s);
    ScaleScores(args, job, k0, s);
    float alpha[2];
    AddScores(s, softmax, alpha);
    if (args.dropout.on) DropScores(args, job, head, k0, s);
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) out[n][i] *= alpha[i / 2];
    }
    AddTileProduct<T, kPitch, kD>(s, v, out);
  }
  const Lane lane;
  float* const lse =
      static_cast<float*>(args.lse) + (job.b * args.heads + head) * args.queries + job.first;
  float inverse[2];
  for (int half = 0; half < 2; ++half) {
    const int t = job.start + lane.first + lane.row + 8 * half;
    // The largest score seen contributes 1, so only a query that sees no key has nothing.
    inverse[half] = softmax.sum[half] == 0.0f ? 0.0f : 1.0f / softmax.sum[half];
    if (lane.column == 0 && t < job.queries) {
      lse[t] = softmax.most[half] * kLn2 + math::Log(softmax.sum[half]);
    }
  }
  StoreTile<T, kD>(args.out, job, job.queries, head, 0, d, inverse, false, out);
}

// Numbers of queries [t, t + 64) in shared memory: lse over ln 2, and delta; zero behind the last.
__device__ inline void LoadNumbers(const Args& args, const Job& job, int64_t head, int t,
                                   float* lse, float* delta) {
  const int r = static_cast<int>(threadIdx.x);
  if (r >= kMmaTile) return;
  const int64_t at = (job.b * args.heads + head) * args.queries + job.first + t + r;
  const bool real = t + r < job.queries;
  lse[r] = real ? static_cast<const float*>(args.lse)[at] * kLog2E : 0.0f;
  delta[r] = real ? static_cast<const float*>(args.delta)[at] : 0.0f;
}

// From scores and the products of grad and v of 16 rows and 64 columns: probabilities as grad_v
// reads them in `s`, gradients of scaled scores in `d_p`. Rows are queries from t0 and columns keys
// from k0, or, kTurned, the other way round.
template <bool kTurned>
__device__ __forceinline__ void GradScores(const Args& args, const Job& job, int64_t head, int t0,
                                           int k0, const float* lse, const float* delta, Scores& s,
                                           Scores& d_p) {
  const Lane lane;
  const float scale = static_cast<float>(args.scale) * kLog2E;
  const float keep_scale = static_cast<float>(args.dropout.keep_scale);
  const uint32_t kept = KeptScores<kTurned>(args, job, head, t0, k0);
  const bool whole = job.SeesWhole(t0, k0, kMmaTile);
#pragma unroll
  for (int n = 0; n < kMmaTile / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = lane.first + lane.row + 8 * (i / 2), column = n * 8 + lane.column + i % 2;
      const int query = kTurned ? column : row, key = kTurned ? row : column;
      const bool seen = whole || job.Sees(t0 + query, k0 + key);
      const float p = seen ? FastExp2(s[n][i] * scale - lse[query]) : 0.0f;
      const float factor = (kept >> (4 * n + i) & 1u) != 0 ? keep_scale : 0.0f;
      s[n][i] = p * factor;
      d_p[n][i] = seen ? p * (d_p[n][i] * factor - delta[query]) : 0.0f;
    }
  }
}

// Grid: query slots, heads. Writes grad_q.
template <typename T, int kD>
__global__ void __launch_bounds__(kMmaThreads) MmaGradQueries(const Args args) {
  constexpr int kPitch = kD + 8, kOperand = kMmaTile * kPitch;
  SHERD_DYNAMIC_SHARED(T, shared);
  Job job;
  if (!FindJob(args, blockIdx.x, kMmaTile, false, job)) return;
  T *const q = shared, *const grad = q + kOperand, *const k = grad + kOperand;
  T* const v = k + kOperand;
  float *const lse = reinterpret_cast<float*>(v + kOperand), *const delta = lse + kMmaTile;
  const int64_t head = blockIdx.y, key_head = head / args.group;
  const int d = args.head_size;
  const auto real = [&](int t) { return t < job.queries; };
  const auto shows = [&](int s) { return job.Shows(s); };
  LoadTile<T, kD>(args.q, job, job.start, head, d, q, real);
  LoadTile<T, kD>(args.grad, job, job.start, head, d, grad, real);
  LoadNumbers(args, job, head, job.start, lse, delta);
  float grad_q[kD / 8][4] = {};
  const int end = job.End(min(job.start + kMmaTile, job.queries) - 1);
  for (int k0 = job.key_begin / kMmaTile * kMmaTile; k0 < end; k0 += kMmaTile) {
    __syncthreads();
    LoadTile<T, kD>(args.k, job, k0, key_head, d, k, shows);
    LoadTile<T, kD>(args.v, job, k0, key_head, d, v, shows);
    __syncthreads();
    Scores s, d_p;
    MultiplyRows<T, kD>(q, k, s);
    MultiplyRows<T, kD>(grad, v, d_p);
    GradScores<false>(args, job, head, job.start, k0, lse, delta, s, d_p);
    AddTileProduct<T, kPitch, kD>(d_p, k, grad_q);
  }
  const float scale = static_cast<float>(args.scale);
  StoreTile<T, kD>(args.grad_q, job, job.queries, head, 0, d, {scale, scale}, args.add_q, grad_q);
}

// Grid: key slots, key heads, pieces of kPiece columns. Writes grad_k and grad_v, those that are
// defined; each piece computes the scores again.
template <typename T, int kD, int kPiece>
__global__ void __launch_bounds__(kMmaThreads) MmaGradKeys(const Args args) {
  constexpr int kPitch = kD + 8, kOperand = kMmaTile * kPitch;
  SHERD_DYNAMIC_SHARED(T, shared);
  Job job;
  if (!FindJob(args, blockIdx.x, kMmaTile, true, job)) return;
  T *const q = shared, *const grad = q + kOperand, *const k = grad + kOperand;
  T* const v = k + kOperand;
  float *const lse = reinterpret_cast<float*>(v + kOperand), *const delta = lse + kMmaTile;
  const int64_t key_head = blockIdx.y;
  const int d = args.head_size, piece = static_cast<int>(blockIdx.z) * kPiece;
  const auto real = [&](int t) { return t < job.queries; };
  const auto shows = [&](int s) { return job.Shows(s); };
  LoadTile<T, kD>(args.k, job, job.start, key_head, d, k, shows);
  LoadTile<T, kD>(args.v, job, job.start, key_head, d, v, shows);
  float grad_k[kPiece / 8][4] = {}, grad_v[kPiece / 8][4] = {};
  const bool seen = job.start < job.key_end && job.start + kMmaTile > job.key_begin;
  const int first = job.causal ? max(0, job.start - job.shift) / kMmaTile * kMmaTile : 0;
  for (int64_t head = key_head * args.group; seen && head < (key_head + 1) * args.group; ++head) {
    for (int t0 = first; t0 < job.queries; t0 += kMmaTile) {
      __syncthreads();
      LoadTile<T, kD>(args.q, job, t0, head, d, q, real);
      LoadTile<T, kD>(args.grad, job, t0, head, d, grad, real);
      LoadNumbers(args, job, head, t0, lse, delta);
      __syncthreads();
      Scores s, d_p;
      MultiplyRows<T, kD>(k, q, s);
      MultiplyRows<T, kD>(v, grad, d_p);
      GradScores<true>(args, job, head, t0, job.start, lse, delta, s, d_p);
      AddTileProduct<T, kPitch, kPiece>(s, grad + piece, grad_v);
      AddTileProduct<T, kPitch, kPiece>(d_p, q + piece, grad_k);
    }
  }
  const float scale = static_cast<float>(args.scale);
  if (args.grad_k.data != nullptr) {
    StoreTile<T, kPiece>(args.grad_k, job, job.keys, key_head, piece, d, {scale, scale}, args.add_k,
                         grad_k);
  }
  if (args.grad_v.data != nullptr) {
    StoreTile<T, kPiece>(args.grad_v, job, job.keys, key_head, piece, d, {1.0f, 1.0f}, args.add_v,
                         grad_v);
  }
}

}  // namespace sherd::cuda::attention
