#pragma once

#include <cstddef>
#include <new>

#include "sherd/runtime/base/pooled.h"

namespace sherd {

// The memory of Pooled for objects of std::allocate_shared: one block holds the object and its
// counts.
//
// Stateless; arrays come from the heap. Ownership and Threads: as Pooled.
template <typename T>
class PooledAllocator {
 public:
  using value_type = T;
  PooledAllocator() = default;
  template <typename U>
  explicit PooledAllocator(const PooledAllocator<U>&) {}

  // Memory for `count` objects, uninitialised. Errors: std::bad_alloc.
  T* allocate(size_t count) {
    if constexpr (kPooled) {
      if (count == 1) return reinterpret_cast<T*>(new Block);
    }
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(alignof(T))));
  }
  void deallocate(T* memory, [[maybe_unused]] size_t count) {
    if constexpr (kPooled) {
      if (count == 1) return delete reinterpret_cast<Block*>(memory);
    }
    ::operator delete(memory, std::align_val_t(alignof(T)));
  }
  friend bool operator==(const PooledAllocator&, const PooledAllocator&) { return true; }

 private:
  // What the lists are of: one for each size and alignment that has a type.
  struct Block : Pooled<Block> {
    alignas(T) char memory[sizeof(T)];
  };
  static constexpr bool kPooled = alignof(T) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__;
};

}  // namespace sherd
