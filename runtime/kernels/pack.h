#pragma once

#include "sherd/runtime/core/tensor.h"

// Operands whose elements lie as a kernel reads them.
//
// Each function gives the tensor itself where it lies so already, which is the usual case and costs
// a look at its strides; else a contiguous copy in workspace memory that lives as long as the
// handle. For reading only: what is written to a copy is lost. Any dtype.
namespace sherd::kernels {

// Contiguous.
Tensor Pack(const Tensor& x);

// Elements of the last dimension adjacent, others anywhere.
Tensor PackInnermost(const Tensor& x);

// Elements of the last dimension adjacent, and the rows that all other dimensions make evenly
// spaced.
Tensor PackRows(const Tensor& x);

// A matrix whose elements are adjacent along one of its dimensions, the others a stride apart that
// does not overlap: what a matrix product reads as such or transposed. REQUIRES: rank 2.
Tensor PackMatrix(const Tensor& x);

// Whether PackInnermost and PackRows give x itself.
bool IsInnermostPacked(const Tensor& x);
bool AreRowsPacked(const Tensor& x);

}  // namespace sherd::kernels
