#include "llm/models/key_value_cache.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace llm {
namespace {

using sherd::Tensor;

[[noreturn]] void Refuse(const std::string& why) {
  sherd::ThrowInvalidArgument(why, {.op = "KeyValueCache"});
}

}  // namespace

KeyValueCache::KeyValueCache(int64_t layers, int64_t capacity)
    : layers_(static_cast<size_t>(layers)), capacity_(capacity) {}

void KeyValueCache::Truncate(int64_t tokens) { tokens_ = std::min(tokens, tokens_); }

KeyValueCache::Seen KeyValueCache::Extend(int64_t layer, const Tensor& keys, const Tensor& values) {
  Seen& all = layers_.at(static_cast<size_t>(layer));
  const int64_t end = tokens_ + keys.dim(1);
  if (end > capacity_) {
    Refuse(absl::StrCat("it has room for ", capacity_, " tokens of a row, and these are ", end));
  }
  if (!all.keys.defined()) {
    const sherd::Shape shape = {keys.dim(0), capacity_, keys.dim(2), keys.dim(3)};
    all = {Tensor::Empty(keys.device(), keys.dtype(), shape),
           Tensor::Empty(keys.device(), keys.dtype(), shape)};
  }
  if (all.keys.dim(0) != keys.dim(0)) {
    Refuse(absl::StrCat("it is of ", all.keys.dim(0), " rows, and these are ", keys.dim(0)));
  }
  sherd::kernels::Copy(keys, all.keys.Slice(1, tokens_, end));
  sherd::kernels::Copy(values, all.values.Slice(1, tokens_, end));
  return {all.keys.Slice(1, 0, end), all.values.Slice(1, 0, end)};
}

}  // namespace llm
