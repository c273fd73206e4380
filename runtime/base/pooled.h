#pragma once

#include <cstddef>
#include <new>

namespace sherd {

namespace internal {

// Blocks of one size that a thread freed and will use again; gone with the thread.
//
// A thread keeps at most kMost of them: one that only frees what others made gives the rest back.
class BlockList {
 public:
  static constexpr int kMost = 1 << 16;

  // Gives everything back, now and from now on: objects may outlive the end of their thread's list,
  // those of other thread-local variables. Called by the destructor of a Closer, not by one of this
  // class, whose members must stay usable.
  void Close() {
    closed_ = true;
    while (Block* block = Pop()) ::operator delete(block);
  }
  struct Closer {
    BlockList& list;
    ~Closer() { list.Close(); }
  };

  // A block of the one size this list serves. Errors: std::bad_alloc.
  void* Take(size_t bytes) {
    Block* block = Pop();
    return block != nullptr ? block : ::operator new(bytes);
  }
  // Takes back what Take of any thread returned.
  void Give(void* memory) {
    if (closed_ || count_ >= kMost) {
      ::operator delete(memory);
      return;
    }
    first_ = new (memory) Block{first_};
    ++count_;
  }

 private:
  struct Block {
    Block* next;
  };
  // The newest block, which is the likeliest to be in the cache; null if there is none.
  Block* Pop() {
    Block* block = first_;
    if (block == nullptr) return nullptr;
    first_ = block->next;
    --count_;
    return block;
  }

  Block* first_ = nullptr;
  int count_ = 0;
  bool closed_ = false;
};

}  // namespace internal

// Base of small objects that are made and dropped all the time: `class Storage : Pooled<Storage>`.
//
// A warm step then asks the heap for none of them. Memory only, nothing of an object's state: two
// models on one thread do not see each other through it. Classes derived from T that are larger use
// the heap. Cost: two instructions to take or give a block, no lock.
// Ownership: a block belongs to the object, then to the list of the thread that freed it, which
// keeps at most BlockList::kMost and gives them back when the thread ends.
// Threads: safe; objects may be freed on another thread than made.
// Under AddressSanitizer every object is the heap's, so that a use after its end is seen.
template <typename T>
class Pooled {
 public:
#if !defined(__SANITIZE_ADDRESS__)
  // Found by new and delete expressions for T. Ownership: as above.
  static void* operator new(size_t bytes) {
    return bytes == sizeof(T) ? List().Take(bytes) : ::operator new(bytes);
  }
  static void operator delete(void* memory, size_t bytes) {
    if (bytes == sizeof(T)) {
      List().Give(memory);
    } else {
      ::operator delete(memory);
    }
  }

 private:
  static internal::BlockList& List() {
    thread_local internal::BlockList list;
    thread_local internal::BlockList::Closer closer{list};
    return closer.list;
  }
#endif
};

}  // namespace sherd
