#pragma once

#include <cstdint>
#include <vector>

#include "sherd/runtime/core/tensor.h"

namespace llm {

// Keys and values of tokens that a decoder has seen, for each of its layers, so that the tokens
// behind them need not compute them again; see TextInput.
//
// Letters: see LlamaConfig. Cost: 2 B capacity K D elements for each layer, from the first call on.
// Threads: one at a time.
class KeyValueCache {
 public:
  // Of a model with so many layers. REQUIRES: both above 0.
  KeyValueCache(int64_t layers, int64_t capacity);

  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  // The most tokens of a row.
  int64_t capacity() const { return capacity_; }
  // The tokens of a row that it has.
  int64_t tokens() const { return tokens_; }
  // Forgets all but the first `tokens` of each row, if it has more. REQUIRES: tokens >= 0.
  void Truncate(int64_t tokens);

  // All keys and values of a layer. Shapes: [B, S, K, D], strided in B.
  // Ownership: the cache's memory, which the next call of Extend changes behind S.
  struct Seen {
    sherd::Tensor keys;
    sherd::Tensor values;
  };
  // Writes those of T more tokens behind the ones that are there, and returns all S = tokens() + T.
  // Shapes: keys and values [B, T, K, D]. Errors: kInvalidArgument for more tokens than capacity(),
  //   or another shape than that of the layer's first call.
  Seen Extend(int64_t layer, const sherd::Tensor& keys, const sherd::Tensor& values);
  // Counts T more tokens, which every layer has been extended by.
  void Advance(int64_t tokens) { tokens_ += tokens; }

 private:
  std::vector<Seen> layers_;  // [B, capacity, K, D]; undefined before the first call
  int64_t capacity_;
  int64_t tokens_ = 0;
};

}  // namespace llm
