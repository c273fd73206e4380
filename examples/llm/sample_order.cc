#include "llm/sample_order.h"

#include <algorithm>

#include "sherd/runtime/core/random.h"

namespace llm {

using sherd::HashName;
using sherd::Mix64;

Permutation::Permutation(int64_t size, uint64_t key)
    : size_(static_cast<uint64_t>(size)), key_(key), half_bits_(1) {
  while ((uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
}

uint64_t Permutation::Encrypt(uint64_t x) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = x >> half_bits_;
  uint64_t right = x & mask;
  for (uint64_t round = 0; round < 4; ++round) {
    const uint64_t next = left ^ (Mix64(Mix64(key_, round), right) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t i) const {
  auto x = static_cast<uint64_t>(i);
  do {
    x = Encrypt(x);
  } while (x >= size_);
  return static_cast<int64_t>(x);
}

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
