#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "sherd/runtime/core/random.h"
#include "sherd/runtime/cuda/internal/types.h"

// What kernels of attention are given, and what a block of one works on. For .cu files.
namespace sherd::cuda::attention {

// A [B, T, H, D] of adjacent D; null data: undefined.
struct Heads {
  void* data = nullptr;
  int64_t batch = 0, token = 0, head = 0;  // strides, in elements
  bool aligned = false;                    // each head of a token is whole 16-byte vectors

  template <typename T>
  __device__ T* At(int64_t b, int64_t t, int64_t h) const {
    return static_cast<T*>(data) + b * batch + t * token + h * head;
  }
};

// A tile of a document, in packed attention. Slots that hold none have no tokens.
struct alignas(16) Tile {
  int row;     // ~row where nobody sees anything: behind the last document
  int first;   // the document's first token in its row
  int tokens;  // of the document
  int start;   // the tile's first, counted from `first`
};

struct Dropout {
  bool on = false;
  uint32_t threshold = 0;  // keep where word >= threshold
  double keep_scale = 1.0;
  uint64_t key = 0;
  const int64_t* samples = nullptr;  // [B]

  // Whether the probability of query t (in its row) of head h and key s is kept.
  __device__ bool Keeps(int64_t b, int64_t h, int64_t t, int64_t s) const {
    const std::array<uint32_t, 4> words =
        Philox4x32(key, static_cast<uint64_t>(samples[b]),
                   static_cast<uint64_t>(h) << 52 | static_cast<uint64_t>(t) << 26 |
                       static_cast<uint64_t>(s / 4));
    const uint32_t low = s % 2 == 0 ? words[0] : words[1];
    const uint32_t high = s % 2 == 0 ? words[2] : words[3];
    return (s % 4 < 2 ? low : high) >= threshold;
  }
};

struct Args {
  Heads q, k, v, out, grad, grad_q, grad_k, grad_v;
  bool add_q = false, add_k = false, add_v = false;
  void* lse = nullptr;    // [B, H, T]
  void* delta = nullptr;  // [B, H, T]: sums of grad * out over D
  int64_t batch = 0, heads = 0, group = 1, queries = 0, keys = 0;
  int head_size = 0;
  bool causal = false;
  double scale = 1.0;
  Dropout dropout;
  const Tile* tiles = nullptr;      // packed: [slots]
  const int* key_ranges = nullptr;  // [B, 2]: begin and end of the keys that are seen, or null
  const uint8_t* mask = nullptr;    // [B, S], where it has holes or is not known to have none
};

// A tile of the queries or keys of a row, or of a document of one. Tokens are counted from the
// first of the row or document.
struct Job {
  int64_t b = 0;
  int first = 0;  // in its row
  int start = 0;  // the tile's first
  int queries = 0, keys = 0;
  int key_begin = 0, key_end = 0;  // nobody sees a key outside
  int shift = 0;                   // query t sees keys up to t + shift
  bool causal = false;
  const uint8_t* mask = nullptr;

  // Whether somebody may see key s.
  __device__ bool Shows(int s) const {
    return s >= key_begin && s < key_end && (mask == nullptr || mask[s] != 0);
  }
  // One past the last key that query t sees; 0 for one behind the last query.
  __device__ int End(int t) const {
    if (t >= queries) return 0;
    const int end = causal ? min(key_end, t + shift + 1) : key_end;
    return max(end, 0);
  }
  __device__ bool Sees(int t, int s) const { return s < End(t) && Shows(s); }
  // Whether queries [t, t + n) see all of keys [s, s + n).
  __device__ bool SeesWhole(int t, int s, int n) const {
    return mask == nullptr && s >= key_begin && s + n <= End(t) && t + n <= queries;
  }
};

// How many tiles of a row there are. For packed attention see PackedSlots.
__host__ __device__ inline int64_t TilesOf(int64_t tokens, int tile) {
  return (tokens + tile - 1) / tile;
}

// The job of block `slot`; false if it has none. Tiles of late queries, which see more keys, come
// first; of keys, those of early ones.
__device__ inline bool FindJob(const Args& args, int64_t slot, int tile, bool of_keys, Job& job) {
  job.causal = args.causal;
  if (args.tiles != nullptr) {
    const Tile x = args.tiles[slot];
    if (x.tokens == 0) return false;
    const bool seen = x.row >= 0;
    job.b = seen ? x.row : ~x.row;
    job.first = x.first;
    job.start = x.start;
    job.queries = job.keys = x.tokens;
    job.key_end = seen ? x.tokens : 0;
    return true;
  }
  const int64_t per_row = TilesOf(of_keys ? args.keys : args.queries, tile);
  const int64_t index = slot % per_row;
  job.b = slot / per_row;
  job.start = static_cast<int>((of_keys ? index : per_row - 1 - index) * tile);
  job.queries = static_cast<int>(args.queries);
  job.keys = static_cast<int>(args.keys);
  job.shift = job.keys - job.queries;
  job.key_end = job.keys;
  if (args.key_ranges != nullptr) {
    job.key_begin = args.key_ranges[2 * job.b];
    job.key_end = args.key_ranges[2 * job.b + 1];
  }
  if (args.mask != nullptr) job.mask = args.mask + job.b * args.keys;
  return true;
}

}  // namespace sherd::cuda::attention
