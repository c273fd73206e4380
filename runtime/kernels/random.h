#pragma once

#include <cstdint>

#include "sherd/runtime/core/tensor.h"

// Random initial values.
//
// The value of element e of a tensor depends on (key, e) alone, so a rank fills the piece it owns
// without the rest and gets the bits an unsharded run would get. `first_element` is the index of
// the piece's first element in the whole tensor. Values are computed in f64, then rounded. Shapes:
// out any contiguous piece of a float dtype. REQUIRES: first_element >= 0.
namespace sherd::kernels {

// Normal values. Element e takes words 2(e % 2) and 2(e % 2) + 1 of Philox4x32(key, e / 2, 0).
void FillNormal(const Tensor& out, uint64_t key, int64_t first_element, double mean, double stddev);

// Uniform values in (low, high), up to rounding. Element e takes word e % 4 of
// Philox4x32(key, e / 4, 0).
void FillUniform(const Tensor& out, uint64_t key, int64_t first_element, double low, double high);

}  // namespace sherd::kernels
