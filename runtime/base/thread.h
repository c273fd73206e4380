#pragma once

#include <signal.h>

#include <functional>
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

// Starts a thread of ours: one that runs `body` with signals blocked as above.
std::thread StartThread(std::function<void()> body);

}  // namespace sherd
