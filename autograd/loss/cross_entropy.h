#pragma once

#include <cstdint>

#include "sherd/autograd/loss/loss_sum.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"
#include "sherd/runtime/kernels/cross_entropy.h"

namespace sherd {

// The cross-entropy of each row of logits with its target, summed over rows whose target is not
// ignored; smoothing and z-loss by kernels::CrossEntropyOptions, over the same rows.
//
// Shapes: logits [..., V], targets one i32 or i64 for each row. items: rows that count.
// Cost: keeps the logits and one number for each row; softmax exists only inside the backward.
// Errors: kInvalidArgument naming both operands if shapes or devices differ, a target out of range,
//   or options outside their ranges.
LossSum CrossEntropy(const Variable& logits, const Tensor& targets,
                     const kernels::CrossEntropyOptions& options = {},
                     CallSite site = CallSite::Here());

struct LinearCrossEntropyOptions {
  kernels::CrossEntropyOptions cross_entropy = {};
  // Classes computed at a time. 0: as many as 32 MiB of logits hold, at least 64. Fewer cost
  // smaller products, more cost memory; values change by rounding only.
  int64_t chunk_classes = 0;
};

// CrossEntropy(Linear(hidden, weight), targets) without logits: classes are taken in chunks of n,
// forward and again in backward, so [N, V] never exists.
//
// Shapes: hidden [..., C] of N rows, weight [V, C], targets N i32 or i64.
// Cost: one more product than the two ops (logits are computed again in backward). Beside hidden,
//   weight and their gradients, at most
//     forward   N n bytes of the dtype + 4 N      (8 N for f64)
//     backward  N n bytes of the dtype, and 4 N C for 16-bit hidden, whose gradient is summed over
//               chunks in f32 and rounded once
//   on the device, with the workspace of Matmul, and 32 N on the host. Gradients go straight to
//   where they are wanted; either operand may be frozen, and its product is then left out.
// Errors: as Linear and CrossEntropy. REQUIRES: a sharded weight is resident: call it inside the
//   module that owns the head.
// Source: the idea of Wijmans et al. 2024, "Cut Your Losses in Large-Vocabulary Language Models".
LossSum LinearCrossEntropy(const Variable& hidden, const Variable& weight, const Tensor& targets,
                           const LinearCrossEntropyOptions& options = {},
                           CallSite site = CallSite::Here());

}  // namespace sherd
