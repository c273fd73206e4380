#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nccl.h"

namespace emulated {

// One call of a collective, a send or a receive, as one rank asked for it.
struct Exchange {
  enum Kind { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kRecv };
  Kind kind = kAllReduce;
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;  // as the call counts
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;
  int peer = 0;          // or the root
  int64_t sequence = 0;  // of the rank's collectives
};

size_t SizeOf(ncclDataType_t type);

// Does what one collective does for all ranks: ranks[r] is the call of rank r. Reads everything
// before it writes. Sums are taken in the order of the ranks; those of 16-bit types are rounded to
// the type after each addition, as a ring of NCCL does.
void RunCollective(const std::vector<Exchange>& ranks);

// The ranks that share a unique id. Calls that belong together meet here, from the workers of the
// ranks' streams; the last one moves the data.
class Clique {
 public:
  explicit Clique(int size);

  // What all ranks see of one rank. Read without the lock, so that a host that polls is not ordered
  // after the work; see stream.h.
  struct Member {
    int device = -1;
    std::string host;
    std::atomic<int> state{ncclInProgress};
    std::atomic<bool> aborted{false};
    std::atomic<int64_t> ended{0};  // jobs
  };

  int size() const { return static_cast<int>(members_.size()); }
  Member& member(int rank) { return *members_[rank]; }

  // Adds a rank; the last one decides for all whether they can talk.
  ncclResult_t Join(int rank, int size, int device, const std::string& host);
  void WaitForAll(int rank);

  // Takes part in all of `calls`, and returns when they are done, the rank has been aborted, or the
  // calls of two ranks did not fit.
  void Run(int rank, const std::vector<Exchange>& calls);
  void Abort(int rank);

 private:
  struct Pending {
    Exchange call;
    bool done = false;
  };
  struct Round {
    std::vector<Pending*> calls;
    int arrived = 0;
  };
  void Post(int rank, Pending* call);
  void PostCollective(int rank, Pending* call);
  void Fail(const std::string& why);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Member>> members_;
  int joined_ = 0;
  bool failed_ = false;  // calls differed
  std::map<int64_t, Round> rounds_;
  std::map<std::pair<int, int>, std::deque<Pending*>> sends_;  // by sender and receiver
  std::map<std::pair<int, int>, std::deque<Pending*>> receives_;
};

}  // namespace emulated
