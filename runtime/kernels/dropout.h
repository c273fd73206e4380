#pragma once

#include <cstdint>
#include <span>

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

namespace sherd::kernels {

// The widths of an element's coordinates in the counter of Dropout.
inline constexpr int kDropoutHeadBits = 12;
inline constexpr int kDropoutPositionBits = 26;
inline constexpr int kDropoutChannelBits = 26;

// Sets each element to zero with probability `p`, and to x / (1 - p) otherwise: out (+)= dropped x.
//
// What happens to an element depends on the key, the global sample index of its row and its
// coordinates, never on where the row lies, so it is the same for any split of the batch. The word
// of element (position t, head h, channel c) of a row with sample index s is
//   Philox4x32(key, s, h << 52 | t << 26 | c / 4)[c % 4],
// and the element is kept when word * 2^-32 >= p. The same call on the gradient is the backward.
// Shapes: x and out [B, C], [B, T, C] or [B, T, H, D], absent coordinates are 0; any strides,
//   adjacent in the last dimension (another x is copied first). `row_samples` has B entries.
// Errors: kInvalidArgument if p is outside [0, 1] or an extent exceeds its bits above.
// REQUIRES: x and out of one float dtype; out may be x.
// Source: Salmon et al. 2011 (Philox); Srivastava et al. 2014 (dropout).
void Dropout(const Tensor& x, uint64_t key, std::span<const int64_t> row_samples, double p,
             const Tensor& out, Write write = Write::kOverwrite);

}  // namespace sherd::kernels
