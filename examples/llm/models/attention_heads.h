#pragma once

#include <cstdint>
#include <memory>

#include "llm/models/key_value_cache.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/core/tensor.h"

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

// What a decoder's layer reads beside hidden states; see TextInput.
struct LayerInput {
  sherd::Tensor cu_seqlens = {};
  sherd::Tensor mask = {};
  std::shared_ptr<KeyValueCache> cache = {};
  int64_t layer = 0;  // its index

  // The position of the first token.
  int64_t begin() const { return cache ? cache->tokens() : 0; }
};

// What each token sees of itself and those before it, the cache's among them, to which it adds the
// keys and values. Shapes: result [B, T, H D].
sherd::Variable CausalAttention(const QueryKeyValue& of, const LayerInput& input, double scale,
                                double dropout);

}  // namespace llm
