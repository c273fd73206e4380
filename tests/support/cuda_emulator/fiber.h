#pragma once

#include <cstddef>

namespace emulated {

// A stack of its own that runs a function until the function switches away. A switch costs some
// nanoseconds and no call of the system. Threads: a fiber is used by the thread that made it.
class Fiber {
 public:
  // The fiber of the calling thread itself.
  Fiber();
  // Will call `entry(argument)`, which never returns. Owns a stack between two guard pages.
  Fiber(void (*entry)(void*), void* argument);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Leaves `from`, which is running, for this fiber; returns when somebody switches to `from`.
  void SwitchFrom(Fiber& from);

 private:
  static void Begin();
  void Arrived();

  void* stack_pointer_ = nullptr;
  void* mapping_ = nullptr;  // with the guard pages; null for a thread's own stack
  const void* bottom_ = nullptr;
  size_t size_ = 0;
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  void* fake_stack_ = nullptr;  // AddressSanitizer's
};

}  // namespace emulated
