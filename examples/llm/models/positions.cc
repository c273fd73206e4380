#include "llm/models/positions.h"

#include <cstdint>
#include <vector>

#include "sherd/runtime/base/error.h"

namespace llm {

sherd::Tensor PositionsOf(const TextInput& input, const char* op) {
  if (input.positions.defined()) return input.positions;
  if (input.cu_seqlens.defined()) {
    sherd::ThrowInvalidArgument("rows of several documents need the positions of their tokens",
                                {.op = op});
  }
  const int64_t rows = input.tokens.dim(0), tokens = input.tokens.dim(1);
  const int64_t first = input.cache ? input.cache->tokens() : 0;
  std::vector<int64_t> positions(static_cast<size_t>(rows * tokens));
  for (size_t i = 0; i < positions.size(); ++i)
    positions[i] = first + static_cast<int64_t>(i) % tokens;
  return sherd::Tensor::FromHost<int64_t>(input.tokens.value().device(), positions, {rows, tokens});
}

}  // namespace llm
