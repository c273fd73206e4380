#include "llm/sample_order.h"

#include <algorithm>

#include "sherd/runtime/core/random.h"

namespace llm {

using sherd::HashName;
using sherd::Mix64;

SampleOrder::SampleOrder(int64_t bytes, int64_t seq, uint64_t seed)
    : seq_(seq),
      seed_(Mix64(seed, HashName("sample order"))),
      windows_(std::max<int64_t>(1, (bytes - 1) / seq - 1)),
      spare_(std::min(seq - 1, bytes - 1 - windows_ * seq)) {}

int64_t SampleOrder::Start(int64_t index) const {
  const uint64_t epoch = Mix64(seed_, static_cast<uint64_t>(index / windows_));
  const auto shift = static_cast<int64_t>(Mix64(epoch) % static_cast<uint64_t>(spare_ + 1));
  return shift + seq_ * Permutation(windows_, epoch)(index % windows_);
}

}  // namespace llm
