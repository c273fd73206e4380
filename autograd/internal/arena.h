#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace sherd::internal {

// Memory for what a recording puts on its tape: handed out in order, taken back all at once.
//
// Keeps its chunks, so that a step as large as an earlier one asks the heap for nothing. Runs no
// destructors.
class Arena {
 public:
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* Allocate(size_t bytes) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    while (current_ < chunks_.size() && chunks_[current_].bytes - used_ < bytes) {
      ++current_;
      used_ = 0;
    }
    if (current_ == chunks_.size()) AddChunk(bytes);
    void* memory = chunks_[current_].memory.get() + used_;
    used_ += bytes;
    return memory;
  }

  // `n` new values of type T.
  template <typename T>
  std::span<T> Array(size_t n) {
    static_assert(alignof(T) <= kAlignment);
    if (n == 0) return {};
    T* first = static_cast<T*>(Allocate(n * sizeof(T)));
    std::uninitialized_value_construct_n(first, n);
    return {first, n};
  }

  void Reset() { current_ = used_ = 0; }

  static constexpr size_t kAlignment = 16;

 private:
  static constexpr size_t kChunkBytes = size_t{1} << 18;
  struct Chunk {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;
  };
  void AddChunk(size_t bytes) {
    bytes = std::max(bytes, kChunkBytes);
    chunks_.push_back({std::unique_ptr<std::byte[]>(new std::byte[bytes]), bytes});
    used_ = 0;
  }

  std::vector<Chunk> chunks_;
  size_t current_ = 0;
  size_t used_ = 0;  // bytes of the current chunk
};

}  // namespace sherd::internal
