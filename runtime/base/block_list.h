#pragma once

#include <cstddef>
#include <new>

namespace sherd::internal {

// Blocks of one size that a thread freed and will use again; what Pooled is made of.
//
// A singly linked list through the blocks themselves. One that only frees what other threads made
// keeps at most kMost blocks and gives the rest back to the heap.
// Threads: one; each has its own list. Ownership: of the blocks in the list.
class BlockList {
 public:
  static constexpr int kMost = 1 << 16;

  BlockList() = default;
  BlockList(const BlockList&) = delete;
  BlockList& operator=(const BlockList&) = delete;

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

  // Gives everything back, now and from now on: objects may outlive the end of their thread's list,
  // those of other thread-local variables. Not a destructor's work, after which no member may be
  // used; a Closer beside the list calls it when the thread ends.
  void Close() {
    closed_ = true;
    while (Block* block = Pop()) ::operator delete(block);
  }
  // Closes a list when it is destroyed itself: thread-local variables end in the reverse of the
  // order in which they were made.
  struct Closer {
    BlockList& list;
    ~Closer() { list.Close(); }
  };

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

  // The block given last; null in an empty list.
  Block* first_ = nullptr;
  // Blocks in the list.
  int count_ = 0;
  // Whether what is given goes to the heap at once.
  bool closed_ = false;
};

}  // namespace sherd::internal
