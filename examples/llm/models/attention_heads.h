#pragma once

#include <cstdint>

#include "sherd/autograd/variable.h"

namespace llm {

// What attention reads. Letters: see LlamaConfig.
struct QueryKeyValue {
  sherd::Variable q;  // [B, T, H, D]
  sherd::Variable k;  // [B, T, K, D]
  sherd::Variable v;  // [B, T, K, D]
};

// The slices of a fused projection. Shapes: qkv [B, T, (H + 2 K) D].
QueryKeyValue SplitHeads(const sherd::Variable& qkv, int64_t heads, int64_t kv_heads);

// The heads of each token one after another. Shapes: seen [B, T, H, D], result [B, T, H D].
sherd::Variable JoinHeads(const sherd::Variable& seen);

}  // namespace llm
