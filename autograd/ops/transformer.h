#pragma once

#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"
#include "sherd/runtime/kernels/attention.h"
#include "sherd/runtime/kernels/rope.h"

namespace sherd {

// Rows of a table: table[ids]. An id that occurs k times gets k contributions in backward.
//
// Shapes: ids any shape, i32 or i64, table [V, C], result ids' shape and C.
// Errors: kInvalidArgument for an id outside [0, V), naming it.
Variable EmbeddingLookup(const Variable& ids, const Variable& table,
                         CallSite site = CallSite::Here());

// x / sqrt(mean(x^2) + eps) * weight over the last dimension.
//
// Shapes: x [..., C], weight [C]. Errors: kInvalidArgument naming both operands.
// Source: Zhang and Sennrich 2019.
Variable RmsNorm(const Variable& x, const Variable& weight, double eps = 1e-5,
                 CallSite site = CallSite::Here());

// Rotates channel pairs (i, i + D/2) by the angle of their token's position, which is
// first_position plus its index.
//
// Shapes: x [B, T, H, D], a slice of a fused projection too; tables [positions, D/2].
// Source: Su et al. 2021.
Variable Rope(const Variable& x, const kernels::RopeTables& tables, int64_t first_position = 0,
              CallSite site = CallSite::Here());

// softmax(scale q k^T) v per head, causal unless options say otherwise; grouped queries by shape.
//
// Padding, packed documents and dropout of the probabilities: see kernels::AttentionOptions. Masks
// are constants on the device of q. Dropout runs while a Recording is on; its mask depends on what
// that of Dropout does, with the key's position for the channel, so not on ranks or micro-batches.
// Shapes: q and result [B, T, H, D], k and v [B, S, Hkv, D], H a multiple of Hkv, D at most 256.
//   Slices of a fused projection need no copy. A query that sees no key gives zeros, never NaN.
// Cost: keeps q, k, v, the result and one number per query and head; never T x S.
// Errors: kInvalidArgument naming both operands; lengths that do not fit; with dropout, if the
//   recording has not B samples.
// Source: Dao et al. 2022.
Variable Attention(const Variable& q, const Variable& k, const Variable& v,
                   kernels::AttentionOptions options, CallSite site = CallSite::Here());

}  // namespace sherd
