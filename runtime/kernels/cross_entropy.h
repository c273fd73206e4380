#pragma once

#include <cstdint>

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// The negative log-likelihood of a softmax over logits, summed over rows.
namespace sherd::kernels {

struct CrossEntropyResult {
  double loss_sum = 0.0;  // over the rows that count
  int64_t count = 0;      // rows whose target is not the ignored one
};

// Sums lse[i] - logits[i, targets[i]] over rows whose target is not `ignore_index`, in f64 in an
// order fixed by the shape, and keeps each row's log of the sum of exponentials for the backward.
//
// Shapes: logits [N, V] (or more leading dimensions that merge), rows may be strided; targets N
//   elements, i32 or i64, contiguous; lse [N] contiguous, f64 for f64, else f32.
// Errors: kInvalidArgument for a target outside [0, V) that is not `ignore_index`, naming its
//   index and value, before anything is written.
CrossEntropyResult CrossEntropy(const Tensor& logits, const Tensor& targets, int64_t ignore_index,
                                const Tensor& lse);

// grad_logits (+)= scale * (softmax(logits) - onehot(targets)); zero in ignored rows.
//
// Shapes: as CrossEntropy; `lse` as it wrote it. Errors: as CrossEntropy.
// REQUIRES: grad_logits has the dtype of logits; it is `logits` itself (with kOverwrite) or
//   overlaps no input.
void CrossEntropyBackward(const Tensor& logits, const Tensor& targets, int64_t ignore_index,
                          const Tensor& lse, double scale, const Tensor& grad_logits,
                          Write write = Write::kOverwrite);

}  // namespace sherd::kernels
