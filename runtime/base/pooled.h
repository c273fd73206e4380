#pragma once

#include <cstddef>
#include <new>

#include "sherd/runtime/base/block_list.h"

namespace sherd {

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
