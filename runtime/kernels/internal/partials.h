#pragma once

#include <algorithm>

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/views.h"

// Sums over the rows of a tensor, one for each column, whose bits the shape alone decides.
namespace sherd::kernels::internal {

// Blocks of rows, each with one partial sum.
struct RowBlocks {
  int64_t rows, block;  // rows, and rows of a block

  explicit RowBlocks(int64_t rows) : rows(rows), block(std::max<int64_t>(32, (rows + 31) / 32)) {}
  int64_t count() const { return (rows + block - 1) / block; }
};

// [blocks, cols] zeros, undefined unless wanted.
inline Tensor Partials(bool wanted, const Tensor& like, const RowBlocks& blocks, int64_t cols) {
  if (!wanted) return {};
  return Tensor::Zeros(like.device(), ComputeDType(like.dtype()), {blocks.count(), cols},
                       MemoryCategory::kWorkspace);
}

// The partial sum of block b; null if there are none.
inline void* PartialOf(const Tensor& partials, int64_t b) {
  if (!partials.defined()) return nullptr;
  return Address(partials) + b * partials.dim(1) * SizeOf(partials.dtype());
}

// sum (+)= all partials, in order. Nothing if there are none.
inline void AddUp(const Tensor& partials, const Tensor& sum, Write write) {
  if (!partials.defined()) return;
  const auto row = [&](int64_t b) {
    return partials.Slice(0, b, b + 1).Reshape({partials.dim(1)});
  };
  for (int64_t b = 1; b < partials.dim(0); ++b) Copy(row(b), row(0), Write::kAdd);
  Cast(row(0), sum, write);
}

}  // namespace sherd::kernels::internal
