#include "sherd/runtime/kernels/internal/copy_strided.h"

#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels::internal {
namespace {

// Rows and columns of a tile: two sides of 8 KiB at most.
constexpr int64_t kTile = 32;

// A matrix of both tensors: `rows` runs along what is adjacent in out, `cols` along what is in x.
struct Plane {
  int64_t rows, cols;
  int64_t x_row, x_col, out_row, out_col;
};

template <typename T>
void CopyTile(const T* x, T* out, const Plane& p, int64_t row, int64_t col) {
  const int64_t last_row = std::min(p.rows, row + kTile), last_col = std::min(p.cols, col + kTile);
  for (int64_t c = col; c < last_col; ++c) {
    for (int64_t r = row; r < last_row; ++r) {
      out[r * p.out_row + c * p.out_col] = x[r * p.x_row + c * p.x_col];
    }
  }
}

template <typename T>
void CopyPlanes(const Tensor& x, const Tensor& out, int row_dim, int col_dim) {
  const Plane plane = {out.dim(row_dim),     out.dim(col_dim),       x.strides()[row_dim],
                       x.strides()[col_dim], out.strides()[row_dim], out.strides()[col_dim]};
  const int64_t tiles = (plane.cols + kTile - 1) / kTile;
  const int64_t planes = out.numel() / (plane.rows * plane.cols);
  out.device().pool().ParallelFor(
      planes * tiles, GrainOf(plane.rows * kTile), [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          int64_t index = item / tiles, from = 0, to = 0;
          for (int i = out.rank() - 1; i >= 0; --i) {
            if (i == row_dim || i == col_dim) continue;
            from += index % out.dim(i) * x.strides()[i];
            to += index % out.dim(i) * out.strides()[i];
            index /= out.dim(i);
          }
          for (int64_t row = 0; row < plane.rows; row += kTile) {
            CopyTile(reinterpret_cast<const T*>(Address(x)) + from,
                     reinterpret_cast<T*>(Address(out)) + to, plane, row, item % tiles * kTile);
          }
        }
      });
}

}  // namespace

int InnermostDim(const Tensor& x) {
  int found = -1;
  for (int i = x.rank() - 1; i >= 0; --i) {
    if (x.dim(i) > 1 && (found < 0 || x.strides()[i] < x.strides()[found])) found = i;
  }
  return found;
}

bool IsTransposedCopy(const Tensor& x, const Tensor& out) {
  if (x.numel() < 2) return false;
  const int from = InnermostDim(x), to = InnermostDim(out);
  return from != to && x.strides()[from] == 1 && out.strides()[to] == 1;
}

void CopyStrided(const Tensor& x, const Tensor& out) {
  SHERD_CHECK(x.shape() == out.shape() && x.dtype() == out.dtype(), "a copy differs in shape");
  const int row_dim = InnermostDim(out), col_dim = InnermostDim(x);
  switch (SizeOf(x.dtype())) {
    case 2:
      return CopyPlanes<uint16_t>(x, out, row_dim, col_dim);
    case 4:
      return CopyPlanes<uint32_t>(x, out, row_dim, col_dim);
    default:
      return CopyPlanes<uint64_t>(x, out, row_dim, col_dim);
  }
}

}  // namespace sherd::kernels::internal
