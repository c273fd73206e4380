#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gloo/rendezvous/context.h"
#include "gloo/transport/unbound_buffer.h"
#include "sherd/runtime/comm/gloo_group.h"
#include "sherd/runtime/comm/internal/gloo_wire.h"
#include "sherd/runtime/comm/internal/herald.h"
#include "sherd/runtime/comm/store.h"

namespace sherd::internal {

// The connections of one rank to its peers, and their fate, shared by a group, its forks and parts.
//
// [Note: one place decides why a link failed] A collective that is interrupted asks Explain, which
// waits for the watchdog to find the reason. The watchdog looks, in this order, for a reason that a
// peer published in the store, for connections that broke (each peer has a sentinel, a receive that
// never completes), and for peers that left in order. What it finds first is published for the
// others, every waiting transfer is aborted, and only then are connections closed: a peer that sees
// ours break finds the reason in the store.
// Threads: safe, but for OpenChannel of one parent, which its members call in the same order.
class GlooLink {
 public:
  static absl::StatusOr<std::shared_ptr<GlooLink>> Connect(std::shared_ptr<Store> store, int rank,
                                                           int size, const GlooOptions& options);
  ~GlooLink();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const GlooOptions& options() const { return options_; }

  // The channel of all ranks; called once, first.
  Channel& OpenWorld();
  // Adds a channel between `members`, ranks of the link that are members of `parent`, this one
  // among them. Channels of one parent are opened in the same order by all its members.
  // Ownership: lives as long as the link.
  Channel& OpenChannel(Channel& parent, std::string name, std::vector<int> members);
  // Posts the receives for the next call's headers. Never throws: a failure shows at that call.
  void PostHeaders(Channel& channel);

  // Bracket a collective. Begin throws the link's failure, if there is one.
  void Begin(Channel& channel, const CollectiveCall& call);
  void End(Channel& channel);
  // Throws Interrupted when the running collective's deadline has passed, though it is done: waits
  // of this link have been aborted, so what follows could not be trusted.
  void CheckInTime(const Channel& channel);

  // Makes `status` the fate of this link unless it has one already. Threads: safe, never blocks.
  void Fail(const absl::Status& status);
  // That fate; OK while there is none.
  absl::Status failure();
  // Fail for a user's Abort: names this rank.
  void Abort(const absl::Status& why);
  // Throws why `channel`'s running collective was interrupted.
  [[noreturn]] void Explain(Channel& channel, const CollectiveCall& call, const Interrupted& how);

  std::unique_ptr<gloo::transport::UnboundBuffer> NewBuffer(void* data, int64_t bytes);

 private:
  friend class WireBuffer;
  GlooLink(std::shared_ptr<Store> store, int rank, int size, const GlooOptions& options);
  absl::Status ConnectMesh();
  void PostSentinels();
  Channel& Open(std::string name, uint64_t id, std::vector<int> members);

  void Register(gloo::transport::UnboundBuffer* buffer);
  void Unregister(gloo::transport::UnboundBuffer* buffer);

  void Watch();
  void ExpireDeadlines();
  void CheckPeers(bool ask_store);
  void DecideLoss(const std::set<int>& broken);
  bool ConsultStore();
  bool HasLeft(int peer);
  bool Publish(const absl::Status& status);
  void FailLocked(const absl::Status& status, bool publish);
  // [Note: what a deadline's error tells] The rank whose deadline passes first writes the error.
  // While it does, `deciding_` keeps calls from beginning, so that it may look at the headers of
  // channels that rest here; whoever runs a call has been interrupted, and tells of its own.
  absl::Status DescribeDeadline(Channel& channel, const CollectiveCall& call);
  void Tell(Channel& channel);
  bool AllToldLocked() const;
  // "; rank 0 was in all_gather of 64 bytes (#5) in unit 'b' on 'gather'": the calls that run here,
  // else the one that ran last; "" before the first.
  std::string WhereaboutsLocked() const;

  const std::shared_ptr<Store> store_;
  const int rank_;
  const int size_;
  const GlooOptions options_;
  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::rendezvous::Context> context_;
  std::vector<char> sentinel_memory_;
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> sentinels_;  // null for this rank
  std::deque<Channel> channels_;

  std::mutex mutex_;
  std::condition_variable wake_watchdog_;
  std::condition_variable failed_;
  std::set<gloo::transport::UnboundBuffer*> waiting_;  // aborted when the link fails
  absl::Status failure_;
  bool deciding_ = false;          // a deadline's error is being written
  bool publish_failure_ = false;   // the watchdog has to tell the peers
  bool suspect_ = false;           // an interrupted collective asks for the reason
  bool hurry_ = false;             // the watchdog is not to sleep before its next look
  int running_ = 0;                // collectives that are running, on all channels
  const Channel* last_ = nullptr;  // where one ended last
  bool stop_ = false;
  std::thread watchdog_;

  // Of the watchdog alone.
  Herald herald_;
  std::set<int> left_;
  bool store_lost_ = false;
  bool closed_ = false;
};

}  // namespace sherd::internal
