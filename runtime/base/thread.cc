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

ThreadNamed::ThreadNamed(const std::string& name) {
  pthread_getname_np(pthread_self(), before_, sizeof(before_));
  pthread_setname_np(pthread_self(), name.substr(0, sizeof(before_) - 1).c_str());
}

ThreadNamed::~ThreadNamed() { pthread_setname_np(pthread_self(), before_); }

std::thread StartThread(std::function<void()> body, const std::string& name) {
  SignalsBlocked blocked;
  ThreadNamed named(name);  // inherited, so that the thread is never seen under another name
  return std::thread(std::move(body));
}

}  // namespace sherd
