#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/cuda/internal/attention_args.h"
#include "sherd/runtime/kernels/attention.h"

// From the operands of attention to what its kernels take. For .cu files.
namespace sherd::cuda::attention {

// Queries, and keys, of a tile.
constexpr int TileOf(DType dtype) {
  return SizeOf(dtype) == 2 ? 64 : dtype == DType::kF64 ? 16 : 32;
}

// Args of a forward, and the memory they point to.
//
// What a query sees is worked out on the device: the host waits for nothing, so lengths that are
// wrong are noted there (fault.h). Two small kernels for masks or documents, none without.
// Ownership: workspace of the device, while this lives.
struct Prepared {
  Args args;
  int64_t query_slots = 0, key_slots = 0;  // blocks for a head, to be given to FindJob
  Tensor mask, key_ranges, tiles, samples;
};

// For tiles of `tile` queries and keys. REQUIRES: checked operands that are not empty.
Prepared Prepare(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                 const Tensor& lse, const kernels::AttentionOptions& options, int tile);

// x as kernels take it.
Heads HeadsOf(const Tensor& x);

}  // namespace sherd::cuda::attention
