#pragma once

#include <signal.h>

#include <functional>
#include <string>
#include <thread>

namespace sherd {

// While it lives, the calling thread receives no signal sent to the process from outside.
//
// A thread started meanwhile inherits that for good, also one that another library starts. So
// SIGPIPE of a broken connection is an error code there, and the handlers of the embedding program
// run on its own threads. Signals of a fault in the thread itself (SIGSEGV and its kin) stay as
// they are. Threads: affects the calling thread only; destroy it there.
class SignalsBlocked {
 public:
  SignalsBlocked();
  ~SignalsBlocked();
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

// While it lives, the calling thread goes by another name in debuggers and /proc, "sherd/gloo" say.
//
// A thread started meanwhile keeps that name, also one that another library starts. The system cuts
// names to 15 characters. Threads: affects the calling thread only; destroy it there.
class ThreadNamed {
 public:
  explicit ThreadNamed(const std::string& name);
  ~ThreadNamed();
  ThreadNamed(const ThreadNamed&) = delete;
  ThreadNamed& operator=(const ThreadNamed&) = delete;

 private:
  char before_[16];
};

// Starts a thread of ours: one that runs `body` with signals blocked as above, under a name of at
// most 15 characters. All of them are listed in runtime/README.md.
std::thread StartThread(std::function<void()> body, const std::string& name = "sherd");

}  // namespace sherd
