#include "fiber.h"

#include <pthread.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// ThreadSanitizer is not told: fibers are one thread to it, which is what they are, so that it sees
// the order of their accesses. A context of its own for each of them, some megabytes, ends with a
// few blocks of 1024 threads. The price: under a barrier the lower frames of a report may be those
// of another fiber.

#if !defined(__x86_64__)
#error "cuda_emulator: the switch between fibers is written for x86-64"
#endif

// Pushes what the calling convention keeps, exchanges the stacks, and pops.
asm(R"(
.text
.globl sherd_emulated_switch
.type sherd_emulated_switch,@function
sherd_emulated_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size sherd_emulated_switch,.-sherd_emulated_switch
)");
extern "C" void sherd_emulated_switch(void** save, void* load);

namespace emulated {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kStackBytes = 256 * 1024;  // address space; what is not touched costs nothing

thread_local Fiber* running = nullptr;
thread_local Fiber* previous = nullptr;

}  // namespace

Fiber::Fiber() {
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  void* address = nullptr;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &address, &size_);
    pthread_attr_destroy(&attributes);
  }
  bottom_ = address;
#endif
}

Fiber::Fiber(void (*entry)(void*), void* argument) : entry_(entry), argument_(argument) {
  const size_t bytes = kStackBytes + 2 * kPage;
  mapping_ = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping_ == MAP_FAILED ||
      mprotect(static_cast<char*>(mapping_) + kPage, kStackBytes, PROT_READ | PROT_WRITE) != 0) {
    std::fprintf(stderr, "cuda_emulator: no memory for the stack of a fiber\n");
    std::abort();
  }
  bottom_ = static_cast<char*>(mapping_) + kPage;
  size_ = kStackBytes;
  // What the switch pops: six registers and the address it returns to, which then sees the stack as
  // a called function does.
  auto* top = reinterpret_cast<uint64_t*>(static_cast<char*>(mapping_) + kPage + kStackBytes);
  *--top = 0;
  *--top = reinterpret_cast<uint64_t>(&Fiber::Begin);
  for (int i = 0; i < 6; ++i) *--top = 0;
  stack_pointer_ = top;
}

Fiber::~Fiber() {
  if (mapping_ == nullptr) return;
#if defined(__SANITIZE_ADDRESS__)
  // Frames that never returned; the next mapping may lie here.
  ASAN_UNPOISON_MEMORY_REGION(mapping_, kStackBytes + 2 * kPage);
#endif
  munmap(mapping_, kStackBytes + 2 * kPage);
}

void Fiber::SwitchFrom(Fiber& from) {
  running = this;
  previous = &from;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from.fake_stack_, bottom_, size_);
#endif
  sherd_emulated_switch(&from.stack_pointer_, stack_pointer_);
  from.Arrived();
}

void Fiber::Arrived() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

void Fiber::Begin() {
  Fiber& self = *running;
  self.Arrived();
  self.entry_(self.argument_);
  std::abort();
}

}  // namespace emulated
