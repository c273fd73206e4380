#include "sherd/runtime/kernels/random.h"

#include <cmath>
#include <numbers>

#include "sherd/runtime/core/random.h"
#include "sherd/runtime/cuda/internal/launch.h"
#include "sherd/runtime/cuda/internal/operands.h"

namespace sherd::cuda {
namespace {

constexpr int kThreads = 256;

// Elements [first, first + n) of a tensor, of which `data` is the first.
struct Piece {
  void* data;
  DType dtype;
  int64_t first, n;
};

// As Normal of core/random.h, whose library functions are the host's.
__device__ inline double NormalOf(uint32_t a, uint32_t b) {
  return std::sqrt(-2.0 * std::log(UniformOpen(a))) *
         std::cos(2.0 * std::numbers::pi * UniformOpen(b));
}

struct NormalFill {
  static constexpr int kPerCall = 2;
  double mean, stddev;
  template <typename Words>
  __device__ double Of(const Words& words, int i) const {
    return mean + stddev * NormalOf(words[static_cast<size_t>(2 * i)],
                                    words[static_cast<size_t>(2 * i + 1)]);
  }
};

struct UniformFill {
  static constexpr int kPerCall = 4;
  double low, high;
  template <typename Words>
  __device__ double Of(const Words& words, int i) const {
    return low + (high - low) * UniformOpen(words[static_cast<size_t>(i)]);
  }
};

// Writes e bytes for an element of e bytes. A thread takes the elements of one call of Philox.
template <typename F>
__global__ void RandomKernel(const F f, const Piece piece, const uint64_t key) {
  const int64_t first_call = piece.first / F::kPerCall;
  const int64_t calls = (piece.first + piece.n - 1) / F::kPerCall - first_call + 1;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t c = int64_t{blockIdx.x} * kThreads + threadIdx.x; c < calls; c += step) {
    const int64_t call = first_call + c;
    const auto words = Philox4x32(key, static_cast<uint64_t>(call), 0);
#pragma unroll
    for (int i = 0; i < F::kPerCall; ++i) {
      const int64_t at = call * F::kPerCall + i - piece.first;
      if (at >= 0 && at < piece.n) StoreAs(piece.data, piece.dtype, at, f.Of(words, i));
    }
  }
}

template <typename F>
void FillWith(const F& f, const Tensor& out, uint64_t key, int64_t first_element) {
  SHERD_CHECK(out.is_contiguous(), "random values fill contiguous pieces");
  SHERD_CHECK(first_element >= 0, "the first element of a random fill is negative");
  SHERD_CHECK(IsFloating(out.dtype()), "random values are floats");
  if (out.numel() == 0) return;
  const int64_t items = out.numel() / F::kPerCall + 1;
  Launch(out.device(), {.grid = GridFor(out.device(), items, kThreads), .block = kThreads},
         RandomKernel<F>, f, Piece{out.raw(), out.dtype(), first_element, out.numel()}, key);
}

}  // namespace

void Kernels::FillNormal(const Tensor& out, uint64_t key, int64_t first_element, double mean,
                         double stddev) const {
  FillWith(NormalFill{mean, stddev}, out, key, first_element);
}

void Kernels::FillUniform(const Tensor& out, uint64_t key, int64_t first_element, double low,
                          double high) const {
  FillWith(UniformFill{low, high}, out, key, first_element);
}

}  // namespace sherd::cuda
