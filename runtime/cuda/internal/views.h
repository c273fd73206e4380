#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/tensor.h"

// Strides of operands, as kernels take them: by value. For .cu files.
namespace sherd::cuda {

// kCount tensors of one shape with as few dimensions as their strides allow: those that lie one
// after another in all of them are merged. Offsets are in elements.
//
// Tensors of equal strides may be expanded ones (stride 0) too.
template <int kCount>
struct Elements {
  int rank = 0;
  int64_t numel = 0;
  int64_t extent[Shape::kMaxRank] = {};
  int64_t stride[Shape::kMaxRank][kCount] = {};

  explicit Elements(const std::array<const Tensor*, kCount>& tensors) {
    const Shape& shape = tensors[0]->shape();
    for (const Tensor* tensor : tensors) {
      SHERD_CHECK(tensor->shape() == shape, "operands of an elementwise kernel differ in shape");
    }
    numel = shape.numel();
    for (int i = 0; i < shape.rank() && numel > 0; ++i) {
      if (shape[i] == 1) continue;
      bool merges = rank > 0;
      for (int n = 0; n < kCount && merges; ++n) {
        merges = stride[rank - 1][n] == tensors[static_cast<size_t>(n)]->strides()[i] * shape[i];
      }
      if (merges) {
        extent[rank - 1] *= shape[i];
      } else {
        extent[rank++] = shape[i];
      }
      for (int n = 0; n < kCount; ++n) {
        stride[rank - 1][n] = tensors[static_cast<size_t>(n)]->strides()[i];
      }
    }
  }

  // Whether all are one run of adjacent elements.
  bool contiguous() const {
    if (rank == 0) return true;
    for (int n = 0; n < kCount; ++n) {
      if (stride[0][n] != 1) return false;
    }
    return rank == 1;
  }

  // Where element `index`, counted in row-major order, lies in each.
  __host__ __device__ void OffsetsOf(int64_t index, int64_t (&offset)[kCount]) const {
    // Divisions are what this costs: 32 bits where they do, none for the outermost dimension.
    const bool narrow = numel <= 0x7fffffff;
    for (int n = 0; n < kCount; ++n) offset[n] = 0;
    for (int i = rank - 1; i >= 0; --i) {
      int64_t at = index;
      if (i > 0 && narrow) {
        const auto whole = static_cast<uint32_t>(index), by = static_cast<uint32_t>(extent[i]);
        at = whole % by;
        index = whole / by;
      } else if (i > 0) {
        at = index % extent[i];
        index /= extent[i];
      }
      for (int n = 0; n < kCount; ++n) offset[n] += at * stride[i][n];
    }
  }
};

}  // namespace sherd::cuda
