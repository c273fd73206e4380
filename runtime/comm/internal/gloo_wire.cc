#include "sherd/runtime/comm/internal/gloo_wire.h"

#include <pthread.h>
#include <signal.h>

#include <exception>

#include "sherd/runtime/comm/internal/gloo_link.h"

namespace sherd::internal {
namespace {

sigset_t SigpipeSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGPIPE);
  return set;
}

}  // namespace

SigpipeGuard::SigpipeGuard() {
  const sigset_t set = SigpipeSet();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &set, &before);
  blocked_here_ = sigismember(&before, SIGPIPE) == 0;
}

SigpipeGuard::~SigpipeGuard() {
  if (!blocked_here_) return;
  const sigset_t set = SigpipeSet();
  const timespec now = {};
  while (sigtimedwait(&set, nullptr, &now) == SIGPIPE) {
  }
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

WireBuffer::WireBuffer(GlooLink& link, void* data, int64_t bytes)
    : link_(link), buffer_(link.NewBuffer(data, bytes)) {
  link_.Register(buffer_.get());
}

WireBuffer::~WireBuffer() { link_.Unregister(buffer_.get()); }

void WireBuffer::Send(int peer, uint64_t slot, int64_t offset, int64_t bytes) {
  try {
    buffer_->send(peer, slot, static_cast<size_t>(offset), static_cast<size_t>(bytes));
  } catch (const std::exception& error) {
    throw Interrupted{error.what()};
  }
}

void WireBuffer::Receive(int peer, uint64_t slot, int64_t offset, int64_t bytes) {
  try {
    buffer_->recv(peer, slot, static_cast<size_t>(offset), static_cast<size_t>(bytes));
  } catch (const std::exception& error) {
    throw Interrupted{error.what()};
  }
}

void WireBuffer::WaitSend() {
  bool ended = false;
  try {
    ended = buffer_->waitSend(kForever);
  } catch (const std::exception& error) {
    throw Interrupted{error.what()};
  }
  if (!ended) throw Interrupted{};
}

void WireBuffer::WaitReceive() {
  bool ended = false;
  try {
    ended = buffer_->waitRecv(kForever);
  } catch (const std::exception& error) {
    throw Interrupted{error.what()};
  }
  if (!ended) throw Interrupted{};
}

}  // namespace sherd::internal
