#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "sherd/runtime/cuda/internal/launch.h"

// A sort of 64-bit keys on the device. For .cu files.
//
// Source: Batcher 1968, "Sorting networks and their applications" (the bitonic sorter).
// Cost: for n keys about log2(n)^2 / 2 exchanges a key; passes over memory only for distances
//   above a tile's: 1 launch up to 2048 keys, 15 for 2^15, 55 for 2^20.
namespace sherd::cuda {

// Sorts behind all keys that are used.
inline constexpr uint64_t kLastKey = ~uint64_t{0};
inline constexpr int kSortTile = 2048;

// Which element a pair has first, of pairs that are `distance` apart. REQUIRES: a power of two.
__device__ inline int64_t FirstOfPair(int64_t pair, int64_t distance) {
  return (pair & ~(distance - 1)) * 2 + (pair & (distance - 1));
}

__device__ inline void OrderPair(uint64_t& a, uint64_t& b, bool ascending) {
  if ((a > b) != ascending) return;
  const uint64_t kept = a;
  a = b;
  b = kept;
}

// Inside of tiles: runs of `from` to `to` keys become sorted ones, up and down in turn.
template <typename Key>
__global__ void __launch_bounds__(kSortTile / 2)
    SortTiles(Key* keys, int64_t tile, int64_t from, int64_t to) {
  __shared__ Key at[kSortTile];
  const int64_t base = blockIdx.x * tile;
  for (int64_t i = threadIdx.x; i < tile; i += blockDim.x) at[i] = keys[base + i];
  for (int64_t run = from; run <= to; run *= 2) {
    for (int64_t distance = std::min(run, tile) / 2; distance > 0; distance /= 2) {
      __syncthreads();
      for (int64_t pair = threadIdx.x; pair < tile / 2; pair += blockDim.x) {
        const int64_t i = FirstOfPair(pair, distance);
        OrderPair(at[i], at[i + distance], ((base + i) & run) == 0);
      }
    }
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < tile; i += blockDim.x) keys[base + i] = at[i];
}

// One pass over pairs that are `distance` apart, for runs of `run` keys.
template <typename Key>
__global__ void OrderFar(Key* keys, int64_t pairs, int64_t distance, int64_t run) {
  for (int64_t pair = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; pair < pairs;
       pair += int64_t{gridDim.x} * blockDim.x) {
    const int64_t i = FirstOfPair(pair, distance);
    OrderPair(keys[i], keys[i + distance], (i & run) == 0);
  }
}

// How many keys SortKeys sorts, where `count` are wanted: a power of two. The others are kLastKey.
inline int64_t PaddedKeys(int64_t count) {
  int64_t padded = 2;
  while (padded < count) padded *= 2;
  return padded;
}

// Sorts keys in place, ascending. REQUIRES: `count` is what PaddedKeys gives.
inline void SortKeys(const Device& device, uint64_t* keys, int64_t count) {
  const int64_t tile = std::min<int64_t>(count, kSortTile);
  const LaunchShape tiles = {
      .grid = static_cast<unsigned>(count / tile),
      .block = static_cast<unsigned>(std::max<int64_t>(32, std::min<int64_t>(tile / 2, 1024)))};
  Launch(device, tiles, &SortTiles<uint64_t>, keys, tile, int64_t{2}, tile);
  for (int64_t run = 2 * tile; run <= count; run *= 2) {
    for (int64_t distance = run / 2; distance >= tile; distance /= 2) {
      Launch(device, {.grid = GridFor(device, count / 2, 256), .block = 256}, &OrderFar<uint64_t>,
             keys, count / 2, distance, run);
    }
    Launch(device, tiles, &SortTiles<uint64_t>, keys, tile, run, run);
  }
}

}  // namespace sherd::cuda
