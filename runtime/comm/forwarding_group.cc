#include "sherd/runtime/comm/forwarding_group.h"

#include <utility>

namespace sherd {

ForwardingGroup::ForwardingGroup(std::shared_ptr<ProcessGroup> inner)
    : ProcessGroup(inner->rank(), inner->size(), inner->description()), inner_(std::move(inner)) {}

void ForwardingGroup::Abort(const absl::Status& why) noexcept { inner_->Abort(why); }
void ForwardingGroup::Fail(const absl::Status& why) noexcept { inner_->Fail(why); }
absl::Status ForwardingGroup::Failure() const { return inner_->Failure(); }
bool ForwardingGroup::Queues() const { return inner_->Queues(); }

void ForwardingGroup::Before(const CollectiveCall&) {}
void ForwardingGroup::After(const CollectiveCall&) {}

void ForwardingGroup::DoAllGather(const CollectiveCall& call, const void* shard, void* full) {
  Before(call);
  inner_->AllGather(shard, full, call.bytes, call.context);
  After(call);
}

void ForwardingGroup::DoReduceScatter(const CollectiveCall& call, const void* full, void* shard) {
  Before(call);
  inner_->ReduceScatter(full, shard, call.bytes / SizeOf(call.dtype), call.types, call.add,
                        call.context);
  After(call);
}

void ForwardingGroup::DoAllReduce(const CollectiveCall& call, void* data) {
  Before(call);
  inner_->AllReduce(data, call.bytes / SizeOf(call.dtype), call.types.full, call.types.wire,
                    call.context);
  After(call);
}

void ForwardingGroup::DoBroadcast(const CollectiveCall& call, void* data) {
  Before(call);
  inner_->Broadcast(data, call.bytes, call.root, call.context);
  After(call);
}

void ForwardingGroup::DoBarrier(const CollectiveCall& call) {
  Before(call);
  inner_->Barrier(call.context);
  After(call);
}

std::unique_ptr<ProcessGroup> ForwardingGroup::DoFork(std::string name) {
  std::unique_ptr<ProcessGroup> fork = inner_->Fork(name);
  return Wrap(std::move(fork), name);
}

std::unique_ptr<ProcessGroup> ForwardingGroup::DoSplit(std::string name,
                                                       std::span<const int> ranks) {
  std::unique_ptr<ProcessGroup> part = inner_->Split(name, ranks);
  return Wrap(std::move(part), name);
}

}  // namespace sherd
