#pragma once

#include <cstddef>
#include <new>

#include "sherd/runtime/base/pooled.h"

namespace sherd {

// The memory of Pooled for objects of std::allocate_shared: one block holds the object and its
// counts.
//
// Stateless: all allocators of a T are one. Arrays, and objects that want more alignment than the
// heap gives by itself, come from the heap.
// Ownership and Threads: as Pooled; a block may be given back on another thread than it was taken.
// Under AddressSanitizer every block is the heap's.
template <typename T>
class PooledAllocator {
 public:
  using value_type = T;
  PooledAllocator() = default;
  // For allocate_shared, which asks for blocks of a type of its own.
  template <typename U>
  explicit PooledAllocator(const PooledAllocator<U>&) {}

  // Memory for `count` objects, uninitialised. Errors: std::bad_alloc.
  T* allocate(size_t count) {
    if constexpr (kPooled) {
      if (count == 1) return reinterpret_cast<T*>(new Block);
    }
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t(alignof(T))));
  }
  // Gives back what allocate(count) returned. Never throws.
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
