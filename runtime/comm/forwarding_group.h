#pragma once

#include <memory>
#include <string>

#include "sherd/runtime/comm/process_group.h"

namespace sherd {

// A group that hands every collective on to another one: what decorators derive from.
//
// Arguments, types and contexts are passed on unchanged. A decorator of its own overrides Before
// or After, and says in Wrap what becomes of forks and splits.
// Ownership: shares the inner group. Threads: as the inner group.
class ForwardingGroup : public ProcessGroup {
 public:
  // Passed on as it is: an Abort of the decorator is one of the group.
  void Abort(const absl::Status& why) noexcept override;
  void Fail(const absl::Status& why) noexcept override;
  absl::Status Failure() const override;
  bool Queues() const override;

 protected:
  // Takes rank, size and description from `inner`. REQUIRES: `inner` is not null.
  explicit ForwardingGroup(std::shared_ptr<ProcessGroup> inner);

  ProcessGroup& inner() const { return *inner_; }

  // Called before a collective is passed on, `call` as this rank called it. An Error thrown here
  // keeps the call from being made. The default does nothing.
  virtual void Before(const CollectiveCall& call);
  // Called after the inner group has returned; not when it threw. The default does nothing.
  virtual void After(const CollectiveCall& call);
  // Decorates a fork or a split of the inner group, by the name it was given.
  virtual std::unique_ptr<ProcessGroup> Wrap(std::unique_ptr<ProcessGroup> inner,
                                             const std::string& name) = 0;

  void DoAllGather(const CollectiveCall& call, const void* shard, void* full) final;
  void DoReduceScatter(const CollectiveCall& call, const void* full, void* shard) final;
  void DoAllReduce(const CollectiveCall& call, void* data) final;
  void DoBroadcast(const CollectiveCall& call, void* data) final;
  void DoBarrier(const CollectiveCall& call) final;
  std::unique_ptr<ProcessGroup> DoFork(std::string name) final;
  std::unique_ptr<ProcessGroup> DoSplit(std::string name, std::span<const int> ranks) final;

 private:
  const std::shared_ptr<ProcessGroup> inner_;
};

}  // namespace sherd
