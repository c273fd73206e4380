#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "sherd/runtime/cuda/internal/launch.h"
#include "sherd/runtime/cuda/internal/operands.h"
#include "sherd/runtime/cuda/internal/views.h"
#include "sherd/runtime/kernels/write.h"

// Kernels that compute each element of their outputs from the elements of their inputs at the same
// place. For .cu files.
namespace sherd::cuda {

inline constexpr int kMapThreads = 256;
// Elements that a thread takes at once: 32 bytes of the type they are computed in.
template <typename C>
inline constexpr int kMapElems = 32 / static_cast<int>(sizeof(C));

struct MapOperand {
  char* data = nullptr;  // null: an output that nobody wants
  DType dtype = DType::kF32;
  bool repeats = false;  // an input whose elements are one along the innermost dimension
  bool add = false;      // an output that is added to
};

// The outputs are the last operands.
template <int kIn, int kOut>
struct MapArgs {
  MapOperand operand[kIn + kOut];
  Elements<kIn + kOut> elements;
  bool packed;  // kMapElems elements lie side by side and aligned in every operand
};

// outputs (+)= f(inputs), for kMapElems elements from `first` on.
template <typename F, int kIn, int kOut>
__device__ inline void MapPack(const F& f, const MapArgs<kIn, kOut>& args, int64_t first) {
  using C = typename F::Computed;
  constexpr int N = kMapElems<C>, kCount = kIn + kOut;
  int64_t offset[kCount];
  args.elements.OffsetsOf(first, offset);
  uint32_t words[kCount][8] = {};
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const MapOperand& x = args.operand[k];
    const int bytes = ElemBytes(x.dtype);
    if ((k < kIn && !x.repeats) || x.add) {
      LoadWords(x.data + offset[k] * bytes, N * bytes, words[k]);
    }
  }
  C v[kCount][N] = {};
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const MapOperand& x = args.operand[k];
    if (k < kIn && x.repeats) {
      const C value = LoadAs<C>(x.data, x.dtype, offset[k]);
#pragma unroll
      for (int j = 0; j < N; ++j) v[k][j] = value;
    } else if (k < kIn || x.add) {
      Decode(words[k], x.dtype, v[k]);
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    C in[kIn], out[kOut];
#pragma unroll
    for (int k = 0; k < kIn; ++k) in[k] = v[k][j];
    f(in, out);
#pragma unroll
    for (int k = 0; k < kOut; ++k) {
      v[kIn + k][j] = args.operand[kIn + k].add ? v[kIn + k][j] + out[k] : out[k];
    }
  }
#pragma unroll
  for (int k = kIn; k < kCount; ++k) {
    const MapOperand& x = args.operand[k];
    if (x.data == nullptr) continue;
    const int bytes = ElemBytes(x.dtype);
    Encode(v[k], x.dtype, words[k]);
    StoreWords(x.data + offset[k] * bytes, N * bytes, words[k]);
  }
}

// The same for element `index`.
template <typename F, int kIn, int kOut>
__device__ inline void MapOne(const F& f, const MapArgs<kIn, kOut>& args, int64_t index) {
  using C = typename F::Computed;
  int64_t offset[kIn + kOut];
  args.elements.OffsetsOf(index, offset);
  C in[kIn], out[kOut];
#pragma unroll
  for (int k = 0; k < kIn; ++k) {
    in[k] = LoadAs<C>(args.operand[k].data, args.operand[k].dtype, offset[k]);
  }
  f(in, out);
#pragma unroll
  for (int k = kIn; k < kIn + kOut; ++k) {
    const MapOperand& x = args.operand[k];
    if (x.data == nullptr) continue;
    const C value = out[k - kIn];
    StoreAs(x.data, x.dtype, offset[k],
            x.add ? LoadAs<C>(x.data, x.dtype, offset[k]) + value : value);
  }
}

// Reads the inputs and the outputs that are added to, and writes the outputs, each element once.
template <typename F, int kIn, int kOut>
__global__ void MapKernel(const F f, const MapArgs<kIn, kOut> args) {
  constexpr int N = kMapElems<typename F::Computed>;
  const int64_t numel = args.elements.numel, tile = int64_t{kMapThreads} * N;
  for (int64_t base = blockIdx.x * tile; base < numel; base += gridDim.x * tile) {
    const int64_t first = base + int64_t{threadIdx.x} * (args.packed ? N : 1);
    if (args.packed && first + N <= numel) {
      MapPack(f, args, first);
      continue;
    }
    // Threads side by side take elements side by side, but at the end of what is packed.
    const int64_t step = args.packed ? 1 : kMapThreads;
    for (int64_t index = first, j = 0; j < N && index < numel; ++j, index += step) {
      MapOne(f, args, index);
    }
  }
}

// An output of RunMap. A skipped one is a tensor of its shape that is not touched.
struct MapOutput {
  const Tensor* tensor;
  kernels::Write write = kernels::Write::kOverwrite;
  bool skipped = false;
};

// Sets MapOperand::repeats, and returns what MapArgs::packed says, for kMapElems = `elems`.
template <int kIn, int kOut>
bool PackMap(MapArgs<kIn, kOut>& args, int elems) {
  const Elements<kIn + kOut>& e = args.elements;
  if (e.rank == 0 || (e.rank > 1 && e.extent[e.rank - 1] % elems != 0)) return false;
  for (int k = 0; k < kIn + kOut; ++k) {
    MapOperand& x = args.operand[k];
    x.repeats = k < kIn && e.stride[e.rank - 1][k] == 0;
    if (x.repeats) continue;
    const int64_t bytes = SizeOf(x.dtype), pack = elems * bytes;
    if (e.stride[e.rank - 1][k] != 1 || pack > 32) return false;
    const int64_t aligned = std::min<int64_t>(16, pack);
    if (reinterpret_cast<uintptr_t>(x.data) % static_cast<uintptr_t>(aligned) != 0) return false;
    for (int i = 0; i + 1 < e.rank; ++i) {
      if (e.stride[i][k] * bytes % aligned != 0) return false;
    }
  }
  return true;
}

// Runs f on every element of operands of one shape, of any float dtypes and any strides, by loads
// and stores of 16 bytes where they lie so.
//
// F: `using Computed = float` or double; __device__ void operator()(const Computed (&in)[kIn],
// Computed (&out)[kOut]) const. An output may be an input, and overlaps none otherwise.
template <typename F, int kIn, int kOut>
void RunMap(const F& f, const std::array<const Tensor*, kIn>& in,
            const std::array<MapOutput, kOut>& out) {
  std::array<const Tensor*, kIn + kOut> tensors{};
  for (size_t k = 0; k < kIn; ++k) tensors[k] = in[k];
  for (size_t k = 0; k < kOut; ++k) tensors[kIn + k] = out[k].tensor;
  MapArgs<kIn, kOut> args = {{}, Elements<kIn + kOut>(tensors), false};
  if (args.elements.numel == 0) return;
  for (size_t k = 0; k < kIn + kOut; ++k) {
    const bool skipped = k >= kIn && out[k - kIn].skipped;
    SHERD_CHECK(IsFloating(tensors[k]->dtype()), "a kernel was given a dtype that is no float");
    args.operand[k].dtype = tensors[k]->dtype();
    args.operand[k].data = skipped ? nullptr : static_cast<char*>(tensors[k]->raw());
    args.operand[k].add = k >= kIn && !skipped && out[k - kIn].write == kernels::Write::kAdd;
  }
  constexpr int kElems = kMapElems<typename F::Computed>;
  args.packed = PackMap(args, kElems);
  const Device& device = out[0].tensor->device();
  const int64_t items = (args.elements.numel + kElems - 1) / kElems;
  Launch(device, {.grid = GridFor(device, items, kMapThreads), .block = kMapThreads},
         MapKernel<F, kIn, kOut>, f, args);
}

// Functions of one and of two inputs, given as a class with a static Of.
template <typename Op, typename C>
struct UnaryMap {
  using Computed = C;
  __device__ void operator()(const C (&in)[1], C (&out)[1]) const { out[0] = Op::Of(in[0]); }
};
template <typename Op, typename C>
struct BinaryMap {
  using Computed = C;
  __device__ void operator()(const C (&in)[2], C (&out)[1]) const { out[0] = Op::Of(in[0], in[1]); }
};

}  // namespace sherd::cuda
