#include "llm/models/attention_heads.h"

#include <array>
#include <vector>

#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/transformer.h"

namespace llm {

using sherd::Variable;

QueryKeyValue SplitHeads(const Variable& qkv, int64_t heads, int64_t kv_heads) {
  const int64_t d = qkv.dim(2) / (heads + 2 * kv_heads);
  const std::array<int64_t, 3> sizes = {heads * d, kv_heads * d, kv_heads * d};
  const std::vector<Variable> parts = Split(qkv, 2, sizes);
  const auto by_head = [&](const Variable& part, int64_t count) {
    return Reshape(part, {part.dim(0), part.dim(1), count, d});
  };
  return {by_head(parts[0], heads), by_head(parts[1], kv_heads), by_head(parts[2], kv_heads)};
}

Variable JoinHeads(const Variable& seen) {
  return Reshape(seen, {seen.dim(0), seen.dim(1), seen.dim(2) * seen.dim(3)});
}

Variable CausalAttention(const QueryKeyValue& of, const LayerInput& input, double scale,
                         double dropout) {
  const sherd::kernels::AttentionOptions options = {.causal = true,
                                                    .scale = scale,
                                                    .key_mask = input.mask,
                                                    .cu_seqlens = input.cu_seqlens,
                                                    .dropout = dropout};
  if (!input.cache) return JoinHeads(Attention(of.q, of.k, of.v, options));
  const KeyValueCache::Seen all = input.cache->Extend(input.layer, of.k.value(), of.v.value());
  return JoinHeads(Attention(of.q, all.keys, all.values, options));
}

}  // namespace llm
