#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/dtype.h"

namespace sherd {

enum class CollectiveOp : uint8_t { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kBarrier };

// "all_gather", "reduce_scatter", ...
std::string_view NameOf(CollectiveOp op);

// The dtypes of a reduction. What they cost is the cast of each piece on its way; there is no
// buffer of full size. All three the same: sums of that dtype, nothing is cast. Otherwise all are
// floats.
struct WireTypes {
  DType full = DType::kF32;  // of what a rank puts in
  // Of what travels. Every rank's contribution is rounded to it, also the one of the rank that
  // keeps the sum, so a sum does not depend on who owns it. Sums of bf16, f16 and f32 are f32's.
  DType wire = DType::kF32;
  DType shard = DType::kF32;  // of the result, rounded to it once

  bool uniform() const { return full == wire && wire == shard; }
};

// One call of a collective, as every rank of a group must make it: the same op with the same
// arguments and the same number in the order of calls.
struct CollectiveCall {
  CollectiveOp op = CollectiveOp::kBarrier;
  // Of the shard for all_gather and reduce_scatter, of the whole buffer for the others; of the
  // reductions as it travels.
  int64_t bytes = 0;
  DType dtype = DType::kF32;  // of the reductions, on the wire; elsewhere kF32, without meaning
  int root = -1;              // of broadcast; elsewhere -1
  bool add = false;           // of reduce_scatter; ranks may differ in it
  uint64_t sequence = 0;      // counts the calls of this group on this rank, from 1
  WireTypes types;            // of the reductions; all_reduce has full == shard
  ErrorContext context;

  // "all_gather of 1024 bytes (#7)"
  std::string ToString() const;
};

// A number of ranks that call collectives together; the handle one rank has.
//
// Collectives block until this rank's part is done, on whatever thread calls them. Reductions SUM,
// nothing else; who divides is decided elsewhere. Sums are taken in rank order, ((r0 + r1) +
// r2)..., so a rerun has the same bits, and every rank has the same. bf16 and f16 are added up in
// f32 and rounded once.
//
// Threads: one collective at a time per group; collectives of a group and of its forks may run at
//   once. A second call that overlaps is kFailedPrecondition. Abort at any time from any thread.
// Errors: collectives throw sherd::Error. kInvalidArgument for bad arguments, found before anything
//   is sent; kFailedPrecondition, on all ranks, when ranks call different collectives, naming both
//   calls; kDeadlineExceeded when ranks were not heard from in time, naming them; kUnavailable when
//   a peer died, naming it; kAborted after Abort here or on a peer. After each of these but the
//   first the group and its forks are dead: output buffers are undefined and later calls throw the
//   same error.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // "gloo 'world' rank 1 of 4", for messages.
  const std::string& description() const { return description_; }

  // Puts every rank's shard into `full`, rank r's at byte r * bytes_per_rank.
  //
  // COLLECTIVE. `bytes_per_rank` may be 0. Shapes: `full` has size() * bytes_per_rank bytes. In
  // place, without a copy, when shard == full + rank() * bytes_per_rank; otherwise the two do not
  // overlap.
  void AllGather(const void* shard, void* full, int64_t bytes_per_rank, ErrorContext context = {});

  // Sums the ranks' `full` buffers and leaves piece rank() of the sum in `shard`.
  //
  // COLLECTIVE. With `add`, the sum is added to what `shard` holds: shard + (r0 + r1 + ...).
  // Shapes: `full` has size() * elems_per_rank elements of `dtype`; `shard` does not overlap it, or
  // is its own piece, full + rank() * elems_per_rank (then without `add`).
  // Cost: peers' pieces are sent straight from `full`; received ones pass through staging of
  // bounded
  //   size, whatever the shard.
  void ReduceScatter(const void* full, void* shard, int64_t elems_per_rank, DType dtype, bool add,
                     ErrorContext context = {});

  // As above, in mixed precision: `full` is in types.full, travels in types.wire, and the sum is
  // written or added to `shard` in types.shard.
  //
  // With `add`, shard + sum is taken in f32, in f64 when the shard or the wire is f64, and rounded
  // once. A group of one rank rounds through the wire as well. With equal types the same as above,
  // bit for bit.
  // COLLECTIVE. Shapes: `shard` may be the rank's own piece of `full` when the two have one dtype.
  // Cost: two pieces of staging for each peer and direction.
  // Errors: kInvalidArgument for integers, unless all three types are the same.
  void ReduceScatter(const void* full, void* shard, int64_t elems_per_rank, const WireTypes& types,
                     bool add, ErrorContext context = {});

  // Replaces `data` by the sum of the ranks' `data`.
  // COLLECTIVE.
  void AllReduce(void* data, int64_t elems, DType dtype, ErrorContext context = {});

  // As above, with what travels in dtype `wire`: the contributions, and the sum, which is rounded
  // to `dtype`, to `wire` and back. Every rank ends with the same bits.
  // COLLECTIVE. Cost and errors as for ReduceScatter.
  void AllReduce(void* data, int64_t elems, DType dtype, DType wire, ErrorContext context = {});

  // Replaces `data` by what rank `root` has there.
  // COLLECTIVE.
  void Broadcast(void* data, int64_t bytes, int root, ErrorContext context = {});

  // Returns when every rank has called it.
  // COLLECTIVE.
  void Barrier(ErrorContext context = {});

  // Returns another channel between the same ranks, with calls counted apart from this group's, so
  // that collectives of the two may run at once on two threads. `name` appears in messages.
  //
  // COLLECTIVE in that every rank forks and splits this group in the same order; nothing is sent.
  // Forks share connections and failure: an error or Abort of one ends all. A fork may outlive the
  // group it came from.
  std::unique_ptr<ProcessGroup> Fork(std::string name);

  // Returns the group of `ranks` of this one, which this rank is among; rank i there is ranks[i]
  // here. `name` appears in messages. A list of one rank gives a group that sends nothing.
  //
  // COLLECTIVE over all ranks of this group, each with the list it is in: the lists are the parts
  // this group is cut into. Parts share connections and failure with this group as forks do: an
  // error or Abort in one ends all, and so does the loss of a rank that is in none of one's own. A
  // part may outlive the group it came from.
  // Cost: one small exchange between all ranks, in which they compare their lists.
  // Errors (thrown): kInvalidArgument when `ranks` is not ascending, leaves this rank out or names
  //   a rank that does not exist; kFailedPrecondition on all ranks when a list has a rank whose own
  //   list is another, naming that rank; those of a collective.
  std::unique_ptr<ProcessGroup> Split(std::string name, std::span<const int> ranks);

  // Ends this group, its forks and its parts: collectives that wait or come later throw kAborted on
  // this rank at once, and on the peers within about a second, with this rank and the text of
  // `why`.
  //
  // The first reason stays; later calls have no effect. Threads: safe. Errors: never throws.
  virtual void Abort(const absl::Status& why) noexcept = 0;
  // As Abort, but `why` is the error of all ranks as it stands. For groups that stand on this one
  // and have found themselves what is wrong. REQUIRES: `why` is not OK.
  virtual void Fail(const absl::Status& why) noexcept { Abort(why); }
  // Why this group is dead; OK while it lives. Where collectives only queue work of a device, this
  // tells what went wrong after they had returned. Threads: safe.
  virtual absl::Status Failure() const = 0;
  // Whether collectives on the memory of a device return when they are queued for it. Ranks then
  // queue those of all groups of a device in one order.
  virtual bool Queues() const { return false; }

 protected:
  // REQUIRES: 0 <= rank < size.
  ProcessGroup(int rank, int size, std::string description);

  // The collectives proper. Arguments are checked; `call` says how this rank called it, for
  // reductions also in which types: a transport that knows only one refuses the others.
  virtual void DoAllGather(const CollectiveCall& call, const void* shard, void* full) = 0;
  virtual void DoReduceScatter(const CollectiveCall& call, const void* full, void* shard) = 0;
  virtual void DoAllReduce(const CollectiveCall& call, void* data) = 0;
  virtual void DoBroadcast(const CollectiveCall& call, void* data) = 0;
  virtual void DoBarrier(const CollectiveCall& call) = 0;
  virtual std::unique_ptr<ProcessGroup> DoFork(std::string name) = 0;
  virtual std::unique_ptr<ProcessGroup> DoSplit(std::string name, std::span<const int> ranks) = 0;

 private:
  template <typename Body>
  void Run(CollectiveCall call, const Body& body);

  const int rank_;
  const int size_;
  const std::string description_;
  std::mutex running_;  // held during a collective, to find overlapping calls
  uint64_t sequence_ = 0;
};

}  // namespace sherd
