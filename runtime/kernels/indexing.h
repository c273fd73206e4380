#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// Elements chosen by indices, and the sums that undo it.
//
// Indices are i32 or i64 of any strides. Where several sources meet in one element they are summed
// in f64 in the order of their places, and rounded once, whatever the number of threads.
// Dtypes: one float dtype for what is read and written.
// Errors: kInvalidArgument for an index outside [0, extent), naming it, its place (in row-major
//   order) and the extent, before anything is written.
namespace sherd::kernels {

// out[.., i, ..] = x[.., ids[i], ..] along dimension `dim`.
// Shapes: x any of rank >= 1, any strides; ids N elements; out x's with extent N in `dim`,
// contiguous.
void IndexSelect(const Tensor& x, int dim, const Tensor& ids, const Tensor& out);

// out[.., ids[i], ..] += x[.., i, ..] along dimension `dim`; kOverwrite sets out to zero first.
// Shapes: as IndexSelect with x and out exchanged: out is contiguous.
void IndexAdd(const Tensor& x, int dim, const Tensor& ids, const Tensor& out,
              Write write = Write::kOverwrite);

// out[i][j][k] = x[i][index[i][j][k]][k] for dim 1, and so for every rank and dimension.
// Shapes: index and out one shape, of x's rank, no extent but that of `dim` above x's. Any strides.
void Gather(const Tensor& x, int dim, const Tensor& index, const Tensor& out);

// out[i][index[i][j][k]][k] += x[i][j][k] for dim 1, and so on; kOverwrite sets out to zero first.
// Shapes: as Gather with x and out exchanged. Any strides.
void ScatterAdd(const Tensor& x, int dim, const Tensor& index, const Tensor& out,
                Write write = Write::kOverwrite);

// out (+)= a where mask is not 0, b elsewhere; an undefined a or b is zero.
// Shapes: mask (i32 or i64), a and b repeat to that of out by NumPy's rules. Any strides.
void Where(const Tensor& mask, const Tensor& a, const Tensor& b, const Tensor& out,
           Write write = Write::kOverwrite);

}  // namespace sherd::kernels
