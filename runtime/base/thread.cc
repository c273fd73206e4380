#include "sherd/runtime/base/thread.h"

#include <pthread.h>

#include <utility>

namespace sherd {

SignalsBlocked::SignalsBlocked() {
  sigset_t blocked;
  sigfillset(&blocked);
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS, SIGPROF}) {
    sigdelset(&blocked, fault);
  }
  pthread_sigmask(SIG_BLOCK, &blocked, &before_);
}

SignalsBlocked::~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

std::thread StartThread(std::function<void()> body) {
  SignalsBlocked blocked;
  return std::thread(std::move(body));
}

}  // namespace sherd
