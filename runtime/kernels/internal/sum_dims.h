#pragma once

#include <array>
#include <cstdint>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/tensor.h"

// What a sum over dimensions makes of its operands on every device.
namespace sherd::kernels::internal {

// The dimensions of x on one side of a sum: those kept, or those summed over, as few as their
// strides allow.
struct SumDims {
  int rank = 0;
  int64_t extent[Shape::kMaxRank] = {}, stride[Shape::kMaxRank] = {};

  constexpr void Append(int64_t dim_extent, int64_t dim_stride) {
    if (dim_extent == 1) return;
    if (rank > 0 && stride[rank - 1] == dim_stride * dim_extent) {
      extent[rank - 1] *= dim_extent;
      stride[rank - 1] = dim_stride;
      return;
    }
    extent[rank] = dim_extent;
    stride[rank++] = dim_stride;
  }
  // Takes the innermost one away; 1 if there is none.
  constexpr int64_t Pop() { return rank == 0 ? 1 : extent[--rank]; }
  constexpr int64_t count() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= extent[i];
    return count;
  }
  // Where an index, counted in row-major order, lies, in elements.
  constexpr int64_t OffsetOf(int64_t index) const {
    int64_t offset = 0;
    for (int i = rank - 1; i > 0; --i) {
      offset += index % extent[i] * stride[i];
      index /= extent[i];
    }
    return rank > 0 ? offset + index * stride[0] : offset;
  }
};

struct SumSplit {
  SumDims kept, summed;
  bool innermost_kept = false;
};

// For sums of shape `sums`, in which a dimension that is summed over has extent 1.
inline SumSplit SplitDims(const Tensor& x, const Shape& sums) {
  SumSplit split;
  for (int i = 0; i < x.rank(); ++i) {
    const bool keep = sums[i] == x.dim(i);
    SHERD_CHECK(keep || sums[i] == 1, "a sum over dimensions does not fit its output");
    if (x.dim(i) > 1) split.innermost_kept = keep;
    (keep ? split.kept : split.summed).Append(x.dim(i), x.strides()[i]);
  }
  return split;
}

// Whether the innermost dimension that has more than one element has them side by side.
inline bool HasAdjacentElements(const Tensor& x) {
  for (int i = x.rank() - 1; i >= 0; --i) {
    if (x.dim(i) > 1) return x.strides()[i] == 1;
  }
  return true;
}

}  // namespace sherd::kernels::internal
