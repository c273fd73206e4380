#pragma once

#include <cstdint>
#include <span>

#include "sherd/runtime/core/tensor.h"

// Reductions of a whole tensor to one number.
//
// Accumulated in f64 in an order that is fixed by the shape alone, so a rerun and another number of
// threads give the same bits. NaN and infinities propagate; an empty tensor gives 0. Any strides.
// REQUIRES: a float dtype.
namespace sherd::kernels {

enum class Reduction : uint8_t {
  kSum,
  kSumAbs,      // of magnitudes: the L1 norm
  kSumSquares,  // the square of the L2 norm
  kMaxAbs,      // the largest magnitude; NaN if any element is NaN
};

// Reduces each tensor to the number at its place in `out`.
// Cost: waits for a device once for all tensors on it that stand side by side.
// REQUIRES: as many numbers as tensors.
void ReduceEach(Reduction what, std::span<const Tensor> xs, std::span<double> out);

double Sum(const Tensor& x);
double SumAbs(const Tensor& x);
double SumSquares(const Tensor& x);
double MaxAbs(const Tensor& x);

}  // namespace sherd::kernels
