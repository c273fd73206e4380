#pragma once

#include <cstdint>
#include <vector>

#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// One token of each row, for classifiers of sequences: of hidden states before the head (cheaper)
// or of logits after it.
//
// Shapes: x [B, T, C], result [B, C]. The gradient of the other tokens is zero.
// Masks: [B, T] i32 or i64 on any device, nonzero where there is a token; padding may lie on either
//   side.
// Errors: kInvalidArgument naming x and the mask if they do not fit.

// The last token that is not padding, as decoders pool. Errors: also a row of only padding, naming
// it.
Variable LastTokens(const Variable& x, const Tensor& mask, CallSite site = CallSite::Here());

// The first token, as encoders pool.
Variable FirstTokens(const Variable& x, CallSite site = CallSite::Here());
// The first that is not padding. Errors: also a row of only padding, naming it.
Variable FirstTokens(const Variable& x, const Tensor& mask, CallSite site = CallSite::Here());

// The mask of a batch of ids [B, T]: i64, 1 where the id is not `pad_id`.
Tensor MaskOfTokens(const Tensor& ids, int64_t pad_id);

}  // namespace sherd
