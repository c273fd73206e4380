#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "sherd/runtime/cuda/internal/launch.h"
#include "sherd/runtime/cuda/internal/reduce.h"
#include "sherd/runtime/cuda/internal/types.h"
#include "sherd/runtime/kernels/internal/views.h"

// Kernels that work row by row, on packs of 16 bytes. For .cu files.
//
// A row belongs to a warp or to a block; its packs go to the threads in turn. Which thread takes
// which element, and so the order of sums, follows from the row's length and element size alone:
// rows that are not aligned are read element by element into the same packs.
//
// kPacks is how many packs of each operand a thread keeps in registers from one pass over the row
// to the next; 0 stands for rows that are too long for that and are read again.
namespace sherd::cuda {

struct RowShape {
  int64_t rows = 0, cols = 0;
  bool aligned = false;  // whole packs at aligned addresses in every operand
};

// Rows of adjacent elements, evenly spaced.
template <typename T>
struct RowsAt {
  T* data = nullptr;
  int64_t stride = 0;

  RowsAt() = default;
  explicit RowsAt(const kernels::internal::RowView& view)
      : data(reinterpret_cast<T*>(view.data)), stride(view.stride) {}
  __device__ T* row(int64_t r) const { return data + r * stride; }
};

inline bool IsAligned(const void* address, int64_t bytes = 16) {
  return reinterpret_cast<uintptr_t>(address) % static_cast<uintptr_t>(bytes) == 0;
}

// Whether every row is whole packs of `pack` elements at aligned addresses. True for no tensor.
inline bool IsAligned(const kernels::internal::RowView& view, int64_t pack) {
  return IsAligned(view.data, pack * std::max<int64_t>(1, view.elem_bytes)) &&
         view.cols % pack == 0 && (view.rows <= 1 || view.stride % pack == 0);
}

// Elements [at, at + N) of a row of `of`; zeros behind its end.
template <int N, typename T>
__device__ inline Pack<T, N> LoadPack(const T* row, int64_t at, const RowShape& of) {
  if (of.aligned) return *reinterpret_cast<const Pack<T, N>*>(row + at);
  Pack<T, N> pack;
#pragma unroll
  for (int j = 0; j < N; ++j) pack.v[j] = at + j < of.cols ? row[at + j] : T{};
  return pack;
}

// Those elements (+)= values.
template <int N, typename T, typename C>
__device__ inline void StorePack(T* row, int64_t at, const RowShape& of, const C (&values)[N],
                                 bool add) {
  Pack<T, N> pack;
  if (add) pack = LoadPack<N>(row, at, of);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    pack.v[j] = Rounder<T>::Round(add ? static_cast<C>(Widen(pack.v[j])) + values[j] : values[j]);
  }
  if (of.aligned) {
    *reinterpret_cast<Pack<T, N>*>(row + at) = pack;
    return;
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (at + j < of.cols) row[at + j] = pack.v[j];
  }
}

// Calls f(k, at) for this thread's packs of a row: the k-th one begins at element `at`.
template <int N, int kPacks, typename F>
__device__ inline void ForEachPack(int64_t cols, const F& f) {
  if constexpr (kPacks > 0) {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int64_t at = (int64_t{k} * blockDim.x + threadIdx.x) * N;
      if (at < cols) f(k, at);
    }
  } else {
    for (int64_t at = int64_t{threadIdx.x} * N; at < cols; at += int64_t{blockDim.x} * N) f(0, at);
  }
}

// Calls f(j) for the elements of a pack at `at` that are in the row.
template <int N, typename F>
__device__ inline void ForEachOf(int64_t at, const RowShape& of, const F& f) {
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if (of.aligned || at + j < of.cols) f(j);
  }
}

// One operand's row, as packs that are in registers or are read when asked for.
template <typename T, int kPacks>
class RowReader {
 public:
  static constexpr int N = kPackOf<T>;

  __device__ RowReader(const T* row, const RowShape& of) : row_(row), of_(of) {
    if constexpr (kPacks > 0) {
      ForEachPack<N, kPacks>(of.cols,
                             [&](int k, int64_t at) { held_[k] = LoadPack<N>(row, at, of); });
    }
  }
  __device__ Pack<T, N> operator()(int k, int64_t at) const {
    if constexpr (kPacks > 0) return held_[k];
    return LoadPack<N>(row_, at, of_);
  }

 private:
  const T* const row_;
  const RowShape of_;
  Pack<T, N> held_[kPacks > 0 ? kPacks : 1];
};

// Over the threads of a row; every one gets the result.
template <typename Op, typename C>
__device__ inline C RowReduce(C value, C none, Op op) {
  return blockDim.x == 32 ? WarpReduce(value, op) : BlockReduce(value, none, op);
}
template <typename C>
__device__ inline C RowSum(C value) {
  return RowReduce(value, C(0), Plus{});
}

// The rows of this thread: from FirstRow on, every RowStep-th.
__device__ inline int64_t FirstRow() { return int64_t{blockIdx.x} * blockDim.y + threadIdx.y; }
__device__ inline int64_t RowStep() { return int64_t{gridDim.x} * blockDim.y; }

inline constexpr int kMostRowThreads = 512;
inline constexpr int kWarpsOfRows = 4;  // rows of a block where a row is a warp's

// Threads of a row, so that each has at most kPacks packs; else as many as a block may have.
inline int RowThreads(int64_t cols, int pack, int packs) {
  const int64_t needed = (cols + int64_t{pack} * packs - 1) / (int64_t{pack} * packs);
  return static_cast<int>(std::min<int64_t>((needed + 31) / 32 * 32, kMostRowThreads));
}

inline LaunchShape RowLaunch(int64_t rows, int threads) {
  const int64_t together = threads == 32 ? kWarpsOfRows : 1;
  const int64_t blocks = std::min<int64_t>((rows + together - 1) / together, int64_t{1} << 30);
  return {.grid = static_cast<unsigned>(blocks),
          .block = dim3(static_cast<unsigned>(threads), static_cast<unsigned>(together))};
}

// Launches held(...) where a thread's share of a row fits into its registers, again(...) elsewhere:
// instances of one kernel with kPacks and with 0.
template <int kPacks, typename T, typename Args>
void LaunchRows(const Device& device, void (*held)(Args), void (*again)(Args), const RowShape& of,
                const Args& args) {
  const int threads = RowThreads(of.cols, kPackOf<T>, kPacks);
  const bool fits = int64_t{threads} * kPackOf<T> * kPacks >= of.cols;
  Launch(device, RowLaunch(of.rows, threads), fits ? held : again, args);
}

}  // namespace sherd::cuda
