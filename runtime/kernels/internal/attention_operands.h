#pragma once

#include <cstdint>

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/attention.h"

// What both backends do with the operands of attention before they compute.
namespace sherd::kernels::internal {

// Checks what attention.h requires of shapes, dtypes and strides.
void CheckAttention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                    const Tensor& lse);
// The same for one more tensor of the shape of `like`, where it is defined.
void CheckLike(const Tensor& x, const Tensor& like);

// How probabilities are dropped: keep where word >= threshold, times keep_scale.
struct AttentionDropout {
  bool on = false;
  uint32_t threshold = 0;
  double keep_scale = 1.0;
};
// Errors: as attention.h says of `dropout`.
AttentionDropout DropoutOf(const Tensor& q, const Tensor& k, const AttentionOptions& options);

}  // namespace sherd::kernels::internal
