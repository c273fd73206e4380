#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

namespace sherd::kernels {

// Gathers rows: out[i] = table[ids[i]].
//
// Shapes: ids any shape of N elements, i32 or i64; table [V, C] and out [N, C] (or ids' shape and
//   C). Any strides of what is read; rows of what is written may be strided.
// Errors: kInvalidArgument for an id outside [0, V), naming the id, its index and V, before
//   anything is written.
// REQUIRES: table and out of one float dtype.
void Embedding(const Tensor& ids, const Tensor& table, const Tensor& out);

// Adds every row of `grad` to the row of `grad_table` its id names; kOverwrite sets the table to
// zero first.
//
// Repeated ids are summed in f32 (f64) in the order of their indices and rounded once, whatever the
// number of threads.
// Shapes: ids and grad as ids and out of Embedding, grad_table [V, C].
// Dtypes: grad_table that of grad, or f32. Errors: as Embedding.
void EmbeddingBackward(const Tensor& grad, const Tensor& ids, const Tensor& grad_table,
                       Write write = Write::kOverwrite);

}  // namespace sherd::kernels
