#pragma once

#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// Functions of elements at the same place; sums and products are in arithmetic.h.
//
// Shapes: operands have one shape; nothing is broadcast. Any strides.
// Errors: kInvalidArgument naming both operands if shapes, dtypes or devices differ.

// alpha * x
Variable Scale(const Variable& x, double alpha, CallSite site = CallSite::Here());
// x * sigmoid(x). Source: Elfwing et al. 2018.
Variable Silu(const Variable& x, CallSite site = CallSite::Here());
// silu(gate) * up in one pass, keeping only its operands. Source: Shazeer 2020, SwiGLU.
Variable SiluMul(const Variable& gate, const Variable& up, CallSite site = CallSite::Here());
// x rounded to another float dtype; the gradient is rounded back.
Variable Cast(const Variable& x, DType dtype, CallSite site = CallSite::Here());

// Sets each element to zero with probability p and divides the rest by 1 - p, while a Recording is
// on; otherwise returns x.
//
// The mask depends on the recording's seed and step, the place of the call in the tree of modules,
// the row's global sample index and the element's coordinates: not on ranks or micro-batches.
// Shapes: x [B, C], [B, T, C] or [B, T, H, D], where B is the number of samples of the recording.
// Errors: kInvalidArgument for p outside [0, 1), or if the recording has not B samples.
Variable Dropout(const Variable& x, double p, CallSite site = CallSite::Here());

}  // namespace sherd
