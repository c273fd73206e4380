#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gloo/transport/unbound_buffer.h"
#include "sherd/runtime/comm/internal/call_record.h"

namespace sherd::internal {

// How long a wait handed to Gloo may last: for good. Gloo closes every connection when one of its
// own timeouts strikes, before peers can be told why, so deadlines are the watchdog's.
inline constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 3650);

// Thrown by WireBuffer when a transfer cannot end: it was aborted or its connection broke. Turned
// into the Error that users see by GlooLink::Explain.
struct Interrupted {
  std::string text;  // what Gloo said, "" when we aborted the transfer ourselves
};

// What ranks tell each other before each collective; sent as it lies in memory.
struct CallHeader {
  uint64_t channel_hash = 0;  // of the fork's name
  int64_t piece_bytes = 0;
  CallRecord call;
  uint64_t magic = 0;  // 0: not received yet, or not to the end
};
static_assert(sizeof(CallHeader) == 136);

// Keeps SIGPIPE from reaching the calling thread while it lives: Gloo writes to sockets without
// MSG_NOSIGNAL. A SIGPIPE that arrived meanwhile is taken back; the thread's mask is as before.
class SigpipeGuard {
 public:
  SigpipeGuard();
  ~SigpipeGuard();
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  bool blocked_here_ = false;
};

class GlooLink;

// Memory that takes part in transfers of one collective, known to the link so that its watchdog can
// end waits on it. One for each peer and direction: Gloo counts completions per buffer.
class WireBuffer {
 public:
  WireBuffer(GlooLink& link, void* data, int64_t bytes);
  ~WireBuffer();
  WireBuffer(const WireBuffer&) = delete;
  WireBuffer& operator=(const WireBuffer&) = delete;

  // Starts a transfer. Errors (of all four): throw Interrupted.
  void Send(int peer, uint64_t slot, int64_t offset, int64_t bytes);
  void Receive(int peer, uint64_t slot, int64_t offset, int64_t bytes);
  // Return when one more of the transfers started has ended, in their order.
  void WaitSend();
  void WaitReceive();

 private:
  GlooLink& link_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

// One group, fork or part: its members, its headers, and what its running collective waits for.
struct Channel {
  std::string name;  // of a fork's fork, the path: "replicate/reduce"
  // The same on all members, whatever other channels each of them has: made from the way from the
  // first channel to this one, each step the number of a fork or split of its parent.
  uint64_t id = 0;
  std::vector<int> members;  // their ranks on the link, ascending; the place is the group's rank
  int rank = 0;              // of ours among them
  uint64_t children = 0;     // forks and splits so far; guarded by the link's mutex
  CallHeader sent;
  std::vector<CallHeader> received;  // per member; receives for the next call are posted ahead
  std::unique_ptr<WireBuffer> send_header;
  std::unique_ptr<WireBuffer> receive_header;
  std::string posting_failed;  // why the next call cannot work

  // Guarded by the link's mutex.
  bool ready = false;  // open for calls
  bool running = false;
  bool expired = false;
  CallRecord call;  // that runs, or ran last
  std::chrono::steady_clock::time_point deadline;
  // When a deadline has passed somewhere on the link: whether, and what, the members other than us
  // have announced here. Filled in by whoever runs a call here, else by whoever writes the error.
  bool told = false;
  std::vector<NamedCall> announced;

  bool agreed = false;               // all headers of the running call are here
  std::atomic<int> waiting_for{-1};  // the link's rank whose data the payload waits for
};

// What a message is; part of its slot, Gloo's name for what matches a send with a receive.
enum class WireKind : uint64_t { kSentinel = 0x50, kHeader, kReduce, kSpread };

// Bits of a slot that tell channels apart.
inline constexpr int kChannelBits = 40;

// The slot of piece `piece` of a message. Slots may come again within a collective, 65536 pieces
// later: a pair's messages of one slot are matched in order.
inline uint64_t WireSlot(WireKind kind, const Channel& channel, int64_t piece = 0) {
  return static_cast<uint64_t>(kind) << 56 |
         (static_cast<uint64_t>(piece) & 0xFFFF) << kChannelBits | channel.id;
}

}  // namespace sherd::internal
