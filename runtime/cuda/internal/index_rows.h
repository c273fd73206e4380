#pragma once

#include <algorithm>
#include <cstdint>

#include "sherd/runtime/cuda/internal/note_fault.h"
#include "sherd/runtime/cuda/internal/rows.h"
#include "sherd/runtime/cuda/internal/sort.h"
#include "sherd/runtime/kernels/pack.h"

// Rows chosen by ids: what embeddings and indices along a dimension share. For .cu files.
//
// Where ids repeat, (id, place) pairs are sorted, and whoever finds the first of an id adds up all
// its rows in the order of their places: no atomics, the same bits on each run.
// Cost: a sort (sort.h) and 8 bytes of workspace for each id, up to twice that; none of it depends
//   on how many ids there might be. A row that is named n times is n steps of one warp for each 16
//   bytes x 32 of it, so a batch of one id alone takes as long as its places are many.
namespace sherd::cuda {

inline constexpr int kIndexThreads = 256;

// Blocks whose threadIdx.x goes along a row of `units` and threadIdx.y over rows.
inline dim3 IndexBlock(int64_t units) {
  unsigned across = 1;
  while (across < 32 && across < units) across *= 2;
  return dim3(across, kIndexThreads / across);
}
inline unsigned IndexGrid(int64_t rows, const dim3& block) {
  return static_cast<unsigned>(std::min<int64_t>((rows + block.y - 1) / block.y, 1 << 30));
}

// ---- copies

template <typename Unit, typename I>
struct CopyRowsArgs {
  const Unit* from;
  Unit* to;
  const I* ids;
  int64_t count, outer;            // ids; how often they apply
  int64_t units;                   // of a row
  int64_t from_stride, to_stride;  // units between rows
  int64_t from_outer;              // units from one block of rows to the next
  IndexCheck check;
};

// to[o][i] = from[o][ids[i]].
template <typename Unit, typename I>
__global__ void __launch_bounds__(kIndexThreads) CopyRows(CopyRowsArgs<Unit, I> args) {
  for (int64_t item = FirstRow(); item < args.outer * args.count; item += RowStep()) {
    const int64_t outer = item / args.count, place = item - outer * args.count;
    const int64_t id = args.ids[place];
    if (!args.check.Passes(id, place)) continue;
    const Unit* const from = args.from + outer * args.from_outer + id * args.from_stride;
    Unit* const to = args.to + item * args.to_stride;
#pragma unroll 4
    for (int64_t u = threadIdx.x; u < args.units; u += blockDim.x) to[u] = from[u];
  }
}

// Rows of `bytes` bytes, `stride` bytes apart.
struct ByteRows {
  char* data = nullptr;
  int64_t bytes = 0, stride = 0;
};

// to[o * N + i] = from[o * limit + ids[i]] for N ids in [0, limit).
inline void LaunchCopyRows(const Device& device, const ByteRows& from, const ByteRows& to,
                           const Tensor& ids, int64_t outer, FaultOp op, int64_t limit) {
  const auto run = [&]<typename Unit, typename I>(Unit, I) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof(Unit));
    CopyRowsArgs<Unit, I> args = {};
    args.from = reinterpret_cast<const Unit*>(from.data);
    args.to = reinterpret_cast<Unit*>(to.data);
    args.ids = static_cast<const I*>(ids.raw());
    args.count = ids.numel();
    args.outer = outer;
    args.units = from.bytes / kBytes;
    args.from_stride = from.stride / kBytes;
    args.to_stride = to.stride / kBytes;
    args.from_outer = limit * args.from_stride;
    args.check = {BackendOf(device).fault(), op, limit};
    const dim3 block = IndexBlock(args.units);
    Launch(device, {.grid = IndexGrid(outer * args.count, block), .block = block},
           &CopyRows<Unit, I>, args);
  };
  const auto fits = [&](int64_t unit) {
    return IsAligned(from.data, unit) && IsAligned(to.data, unit) && from.bytes % unit == 0 &&
           from.stride % unit == 0 && to.stride % unit == 0;
  };
  WithIndex(ids.dtype(), [&]<typename I>(I) {
    if (fits(16)) return run(Pack<uint32_t, 4>{}, I{});
    if (fits(4)) return run(uint32_t{}, I{});
    run(uint16_t{}, I{});
  });
}

// ---- sums

// Key of the pair (id, place) among `count` places.
__device__ inline uint64_t KeyOf(int64_t id, int64_t place, int64_t count) {
  return static_cast<uint64_t>(id) * static_cast<uint64_t>(count) + static_cast<uint64_t>(place);
}

template <typename I>
__global__ void __launch_bounds__(kIndexThreads)
    MakeKeys(const I* ids, int64_t count, int64_t padded, IndexCheck check, uint64_t* keys) {
  for (int64_t i = int64_t{blockIdx.x} * kIndexThreads + threadIdx.x; i < padded;
       i += int64_t{gridDim.x} * kIndexThreads) {
    const bool named = i < count && check.Passes(ids[i], i);
    keys[i] = named ? KeyOf(ids[i], i, count) : kLastKey;
  }
}

// Memory for the keys of `count` places in [0, limit).
inline Tensor EmptyKeys(const Device& device, int64_t count, int64_t limit) {
  SHERD_CHECK(limit == 0 || count < INT64_MAX / limit, "too many indices into too large a tensor");
  return Tensor::Empty(device, DType::kI64, {PaddedKeys(count)}, MemoryCategory::kWorkspace);
}

// The pairs of contiguous ids, sorted; ids that are out of range are noted and come last, without a
// key.
inline Tensor SortedPairs(const Device& device, const Tensor& ids, FaultOp op, int64_t limit) {
  const Tensor memory = EmptyKeys(device, ids.numel(), limit);
  auto* const keys = static_cast<uint64_t*>(memory.raw());
  const IndexCheck check = {BackendOf(device).fault(), op, limit};
  WithIndex(ids.dtype(), [&]<typename I>(I) {
    Launch(device, {.grid = GridFor(device, memory.numel(), kIndexThreads), .block = kIndexThreads},
           &MakeKeys<I>, static_cast<const I*>(ids.raw()), ids.numel(), memory.numel(), check,
           keys);
  });
  SortKeys(device, keys, memory.numel());
  return memory;
}

// Where a sorted key is the first of its id: the id, and the end of its keys.
struct Group {
  int64_t id = -1, end = 0;  // -1: it is not
};

// By bisection, so that a long group is as quick to find.
__device__ inline Group GroupAt(const uint64_t* keys, int64_t at, int64_t count) {
  const uint64_t key = keys[at], places = static_cast<uint64_t>(count);
  Group group;
  if (key == kLastKey) return group;
  const uint64_t id = key / places, next = (id + 1) * places;
  if (at > 0 && keys[at - 1] >= id * places) return group;
  int64_t low = at + 1, high = count;  // keys before low are the id's, those from high on are not
  if (low < count && keys[low] >= next) high = low;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    (keys[middle] < next ? low : high) = keys[middle] < next ? middle + 1 : middle;
  }
  group.id = static_cast<int64_t>(id);
  group.end = low;
  return group;
}

template <typename T, typename U>
struct AddRowsArgs {
  RowShape of;  // rows: unused
  RowsAt<const T> from;
  RowsAt<U> to;
  const uint64_t* keys;
  int64_t count, outer;
  int64_t limit;  // rows of `to` for each of `outer`
};

// to[o][id] += sum of from[o][places of id], summed as S.
template <typename S, typename T, typename U>
__global__ void __launch_bounds__(kIndexThreads) AddRows(AddRowsArgs<T, U> args) {
  constexpr int N = kPackOf<T>;
  const RowShape of = args.of;
  for (int64_t item = FirstRow(); item < args.outer * args.count; item += RowStep()) {
    const int64_t outer = item / args.count;
    const Group group = GroupAt(args.keys, item - outer * args.count, args.count);
    if (group.id < 0) continue;
    const uint64_t first_key = KeyOf(group.id, 0, args.count);
    for (int64_t at = (int64_t{blockIdx.y} * blockDim.x + threadIdx.x) * N; at < of.cols;
         at += int64_t{gridDim.y} * blockDim.x * N) {
      S sum[N] = {};
#pragma unroll 4
      for (int64_t i = item - outer * args.count; i < group.end; ++i) {
        const auto place = static_cast<int64_t>(args.keys[i] - first_key);
        const Pack<T, N> pack = LoadPack<N>(args.from.row(outer * args.count + place), at, of);
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += static_cast<S>(Widen(pack.v[j]));
      }
      StorePack<N>(args.to.row(outer * args.limit + group.id), at, of, sum, true);
    }
  }
}

// The sums of LaunchAddRows for one pair of element types, S being what they are summed in.
template <typename S, typename T, typename U>
void LaunchAddRowsOf(const Device& device, const kernels::internal::RowView& from,
                     const kernels::internal::RowView& to, const Tensor& pairs, int64_t count,
                     int64_t outer) {
  constexpr int N = kPackOf<T>;
  AddRowsArgs<T, U> args = {};
  args.of = {0, from.cols, IsAligned(from, N) && IsAligned(to, N)};
  args.from = RowsAt<const T>(from);
  args.to = RowsAt<U>(to);
  args.keys = static_cast<const uint64_t*>(pairs.raw());
  args.count = count;
  args.outer = outer;
  args.limit = to.rows / outer;
  const int64_t packs = (from.cols + N - 1) / N;
  const dim3 block = IndexBlock(packs);
  const auto tiles =
      static_cast<unsigned>(std::min<int64_t>((packs + block.x - 1) / block.x, 65535));
  Launch(device, {.grid = dim3(IndexGrid(outer * count, block), tiles), .block = block},
         &AddRows<S, T, U>, args);
}

}  // namespace sherd::cuda
