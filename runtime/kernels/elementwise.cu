#include "sherd/runtime/kernels/elementwise.h"

#include <bit>

#include "sherd/runtime/cuda/internal/map.h"
#include "sherd/runtime/kernels/internal/copy_strided.h"
#include "sherd/runtime/kernels/pack.h"

// Bytes moved, for elements of e bytes and with e more to read where an output is added to: Add,
// Mul, SiluBackward, SiluMul read 2e and write e; Scale, Silu read e and write e; Cast reads those
// of one dtype and writes those of the other; SiluMulBackward reads 3e and writes 2e; Copy reads e
// and writes e; Fill writes e.
namespace sherd::cuda {
namespace {

using kernels::Write;

void CheckSameDType(const Tensor& a, const Tensor& b) {
  SHERD_CHECK(a.dtype() == b.dtype(), "operands of an elementwise kernel differ in dtype");
}

template <typename Op>
void RunBinary(const Tensor& a, const Tensor& b, const Tensor& out, Write write) {
  CheckSameDType(a, out);
  CheckSameDType(b, out);
  WithCompute(out.dtype(), [&]<typename C>(C) {
    RunMap<BinaryMap<Op, C>, 2, 1>({}, {&a, &b}, {{{&out, write}}});
  });
}

template <typename C>
struct ScaleMap {
  using Computed = C;
  C alpha;
  __device__ void operator()(const C (&in)[1], C (&out)[1]) const { out[0] = alpha * in[0]; }
};

template <typename C>
struct CastMap {
  using Computed = C;
  __device__ void operator()(const C (&in)[1], C (&out)[1]) const { out[0] = in[0]; }
};

template <typename C>
struct SiluMulBackwardMap {
  using Computed = C;
  __device__ void operator()(const C (&in)[3], C (&out)[2]) const {
    const auto of = math::SiluMulBackwardOf(in[0], in[1], in[2]);
    out[0] = of.gate;
    out[1] = of.up;
  }
};

// out (+)= x for two float dtypes, computed in the wider one.
void RunCast(const Tensor& x, const Tensor& out, Write write) {
  WithCompute(x.dtype() == DType::kF64 ? x.dtype() : out.dtype(), [&]<typename C>(C) {
    RunMap<CastMap<C>, 1, 1>({}, {&x}, {{{&out, write}}});
  });
}

// Elements whose bits are moved as they are.
template <typename Word, int kCount>
struct Words {
  Word* data[kCount];
  Elements<kCount> elements;
};

template <typename Word>
__global__ void CopyKernel(const Words<Word, 2> args) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < args.elements.numel;
       i += step) {
    int64_t offset[2];
    args.elements.OffsetsOf(i, offset);
    args.data[1][offset[1]] = args.data[0][offset[0]];
  }
}

template <typename Word>
__global__ void FillKernel(const Words<Word, 1> args, const Word value) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < args.elements.numel;
       i += step) {
    int64_t offset[1];
    args.elements.OffsetsOf(i, offset);
    args.data[0][offset[0]] = value;
  }
}

// Counts in chunks of `pack` elements instead, if the tensors consist of aligned ones.
template <int kCount>
bool InChunks(Elements<kCount>& e, const std::array<const Tensor*, kCount>& tensors, int pack) {
  if (e.rank == 0 || e.extent[e.rank - 1] % pack != 0) return false;
  for (int n = 0; n < kCount; ++n) {
    const auto address = reinterpret_cast<uintptr_t>(tensors[static_cast<size_t>(n)]->raw());
    if (e.stride[e.rank - 1][n] != 1 || address % 16 != 0) return false;
    for (int i = 0; i + 1 < e.rank; ++i) {
      if (e.stride[i][n] % pack != 0) return false;
    }
  }
  e.extent[e.rank - 1] /= pack;
  e.numel /= pack;
  for (int i = 0; i + 1 < e.rank; ++i) {
    for (int n = 0; n < kCount; ++n) e.stride[i][n] /= pack;
  }
  return true;
}

// Calls f with a word of an element's size, or a chunk of them.
template <int kCount, typename F>
void WithWords(const std::array<const Tensor*, kCount>& tensors, const F& f) {
  Elements<kCount> elements(tensors);
  if (elements.numel == 0) return;
  const auto call = [&]<typename Word>(Word) {
    Words<Word, kCount> words = {{}, elements};
    for (size_t n = 0; n < kCount; ++n) words.data[n] = static_cast<Word*>(tensors[n]->raw());
    f(words, GridFor(tensors[0]->device(), elements.numel, kMapThreads));
  };
  const int64_t bytes = SizeOf(tensors[0]->dtype());
  if (InChunks<kCount>(elements, tensors, static_cast<int>(16 / bytes))) return call(Chunk{});
  if (bytes == 2) return call(uint16_t{});
  bytes == 4 ? call(uint32_t{}) : call(uint64_t{});
}

// A matrix of two tensors: rows along what is adjacent in out, columns along what is in x; and the
// dimensions outside of it.
struct Planes {
  int64_t rows, cols;
  int64_t x_row, out_col;  // x_col and out_row are 1
  int64_t row_tiles, col_tiles;
  int64_t tiles;  // of all planes
  Elements<2> outer;
};

// out = x, through a tile of shared memory, so that both are accessed along what is adjacent.
// Blocks of 32 x 8 threads.
template <typename Word, int kTile>
__global__ void TransposeKernel(const Planes p, const Word* x, Word* out) {
  __shared__ Word tile[kTile][kTile + 1];
  for (int64_t item = blockIdx.x; item < p.tiles; item += gridDim.x) {
    int64_t offset[2];
    p.outer.OffsetsOf(item / (p.row_tiles * p.col_tiles), offset);
    const int64_t row = item / p.col_tiles % p.row_tiles * kTile;
    const int64_t col = item % p.col_tiles * kTile;
    for (int r = static_cast<int>(threadIdx.y); r < kTile; r += 8) {
      for (int c = static_cast<int>(threadIdx.x); c < kTile; c += 32) {
        if (row + r < p.rows && col + c < p.cols) {
          tile[r][c] = x[offset[0] + (row + r) * p.x_row + col + c];
        }
      }
    }
    __syncthreads();
    for (int c = static_cast<int>(threadIdx.y); c < kTile; c += 8) {
      for (int r = static_cast<int>(threadIdx.x); r < kTile; r += 32) {
        if (row + r < p.rows && col + c < p.cols) {
          out[offset[1] + (col + c) * p.out_col + row + r] = tile[r][c];
        }
      }
    }
    __syncthreads();
  }
}

template <typename Word, int kTile>
void Transpose(const Tensor& x, const Tensor& out) {
  const int row_dim = kernels::internal::InnermostDim(out);
  const int col_dim = kernels::internal::InnermostDim(x);
  const Tensor x_outer = x.Slice(row_dim, 0, 1).Slice(col_dim, 0, 1);
  const Tensor out_outer = out.Slice(row_dim, 0, 1).Slice(col_dim, 0, 1);
  Planes p = {out.dim(row_dim),
              out.dim(col_dim),
              x.strides()[row_dim],
              out.strides()[col_dim],
              (out.dim(row_dim) + kTile - 1) / kTile,
              (out.dim(col_dim) + kTile - 1) / kTile,
              0,
              Elements<2>({&x_outer, &out_outer})};
  p.tiles = p.outer.numel * p.row_tiles * p.col_tiles;
  Launch(out.device(),
         {.grid = GridFor(out.device(), p.tiles * kMapThreads, kMapThreads), .block = {32, 8}},
         TransposeKernel<Word, kTile>, p, static_cast<const Word*>(x.raw()),
         static_cast<Word*>(out.raw()));
}

// Rows of a tile fill lines of 128 bytes.
void RunTranspose(const Tensor& x, const Tensor& out) {
  switch (SizeOf(x.dtype())) {
    case 2:
      return Transpose<uint16_t, 64>(x, out);
    case 4:
      return Transpose<uint32_t, 32>(x, out);
    default:
      return Transpose<uint64_t, 32>(x, out);
  }
}

// The bits of a value.
uint64_t FillBits(DType dtype, double value) {
  switch (dtype) {
    case DType::kF32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case DType::kF64:
      return std::bit_cast<uint64_t>(value);
    case DType::kBF16:
      return BFloat16(static_cast<float>(value)).bits;
    case DType::kF16:
      return Float16(static_cast<float>(value)).bits;
    case DType::kI32:
      return static_cast<uint32_t>(static_cast<int32_t>(value));
    case DType::kI64:
      break;
  }
  return static_cast<uint64_t>(static_cast<int64_t>(value));
}

// As often as they fit into a word.
template <typename Word>
Word WordOf(uint64_t bits, int64_t bytes) {
  if constexpr (sizeof(Word) == sizeof(Chunk)) {
    if (bytes == 2) bits |= bits << 16;
    if (bytes <= 4) bits |= bits << 32;
    const auto low = static_cast<uint32_t>(bits), high = static_cast<uint32_t>(bits >> 32);
    return {{low, high, low, high}};
  } else {
    return static_cast<Word>(bits);
  }
}

}  // namespace

void Kernels::Add(const Tensor& a, const Tensor& b, const Tensor& out, Write write) const {
  RunBinary<math::AddOf>(a, b, out, write);
}

void Kernels::Mul(const Tensor& a, const Tensor& b, const Tensor& out, Write write) const {
  RunBinary<math::MulOf>(a, b, out, write);
}

void Kernels::Scale(const Tensor& x, double alpha, const Tensor& out, Write write) const {
  CheckSameDType(x, out);
  WithCompute(out.dtype(), [&]<typename C>(C) {
    RunMap<ScaleMap<C>, 1, 1>({static_cast<C>(alpha)}, {&x}, {{{&out, write}}});
  });
}

void Kernels::Copy(const Tensor& x, const Tensor& out, Write write) const {
  CheckSameDType(x, out);
  SHERD_CHECK(x.shape() == out.shape(), "a copy differs in shape");
  const bool transposed = kernels::internal::IsTransposedCopy(x, out);
  if (write == Write::kAdd) return RunCast(transposed ? kernels::Pack(x) : x, out, write);
  if (transposed) return RunTranspose(x, out);
  if (out.numel() == 0 || (x.raw() == out.raw() && x.strides() == out.strides())) return;
  if (x.is_contiguous() && out.is_contiguous()) {
    return BackendOf(out.device()).Copy(out.raw(), x.raw(), out.bytes());
  }
  WithWords<2>({&x, &out}, [&]<typename Word>(const Words<Word, 2>& words, unsigned grid) {
    Launch(out.device(), {.grid = grid, .block = kMapThreads}, CopyKernel<Word>, words);
  });
}

void Kernels::Cast(const Tensor& x, const Tensor& out, Write write) const {
  if (x.dtype() == out.dtype()) return Copy(x, out, write);
  RunCast(x, out, write);
}

void Kernels::Fill(const Tensor& out, double value) const {
  const uint64_t bits = FillBits(out.dtype(), value);
  if (out.numel() == 0) return;
  if (bits == 0 && out.is_contiguous()) {
    return BackendOf(out.device()).Zero(out.raw(), out.bytes());
  }
  WithWords<1>({&out}, [&]<typename Word>(const Words<Word, 1>& words, unsigned grid) {
    Launch(out.device(), {.grid = grid, .block = kMapThreads}, FillKernel<Word>, words,
           WordOf<Word>(bits, SizeOf(out.dtype())));
  });
}

void Kernels::Silu(const Tensor& x, const Tensor& out) const {
  CheckSameDType(x, out);
  WithCompute(out.dtype(), [&]<typename C>(C) {
    RunMap<UnaryMap<math::SiluOf, C>, 1, 1>({}, {&x}, {{{&out}}});
  });
}

void Kernels::SiluBackward(const Tensor& grad, const Tensor& x, const Tensor& grad_x,
                           Write write) const {
  RunBinary<math::SiluBackwardOf>(grad, x, grad_x, write);
}

void Kernels::SiluMul(const Tensor& gate, const Tensor& up, const Tensor& out) const {
  RunBinary<math::SiluMulOf>(gate, up, out, Write::kOverwrite);
}

void Kernels::SiluMulBackward(const Tensor& grad, const Tensor& gate, const Tensor& up,
                              const Tensor& grad_gate, Write write_gate, const Tensor& grad_up,
                              Write write_up) const {
  CheckSameDType(grad, gate);
  CheckSameDType(grad, up);
  const Tensor& to_gate = grad_gate.defined() ? grad_gate : gate;
  const Tensor& to_up = grad_up.defined() ? grad_up : up;
  CheckSameDType(grad, to_gate);
  CheckSameDType(grad, to_up);
  WithCompute(grad.dtype(), [&]<typename C>(C) {
    RunMap<SiluMulBackwardMap<C>, 3, 2>(
        {}, {&grad, &gate, &up},
        {{{&to_gate, write_gate, !grad_gate.defined()}, {&to_up, write_up, !grad_up.defined()}}});
  });
}

}  // namespace sherd::cuda
