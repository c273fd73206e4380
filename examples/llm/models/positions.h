#pragma once

#include "llm/models/text_model.h"

namespace llm {

// The positions of tokens, for models that learn them: [B, T], those given, or 0, 1, ... in every
// row, from behind the cache's. Errors: kInvalidArgument in the name of `op` for documents without
// positions.
sherd::Tensor PositionsOf(const TextInput& input, const char* op);

}  // namespace llm
