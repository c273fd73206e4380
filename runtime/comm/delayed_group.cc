#include "sherd/runtime/comm/delayed_group.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "sherd/runtime/core/random.h"

namespace sherd {
namespace {

class DelayedGroup final : public ProcessGroup {
 public:
  DelayedGroup(std::shared_ptr<ProcessGroup> inner, DelayOptions options, uint64_t key)
      : ProcessGroup(inner->rank(), inner->size(), inner->description()),
        inner_(std::move(inner)),
        options_(options),
        key_(key) {}

  void Abort(const absl::Status& why) noexcept override { inner_->Abort(why); }

 protected:
  void DoAllGather(const CollectiveCall& call, const void* shard, void* full) override {
    Delayed(call, [&] { inner_->AllGather(shard, full, call.bytes, call.context); });
  }
  void DoReduceScatter(const CollectiveCall& call, const void* full, void* shard) override {
    Delayed(call, [&] {
      inner_->ReduceScatter(full, shard, call.bytes / SizeOf(call.dtype), call.dtype, call.add,
                            call.context);
    });
  }
  void DoAllReduce(const CollectiveCall& call, void* data) override {
    Delayed(call, [&] {
      inner_->AllReduce(data, call.bytes / SizeOf(call.dtype), call.dtype, call.context);
    });
  }
  void DoBroadcast(const CollectiveCall& call, void* data) override {
    Delayed(call, [&] { inner_->Broadcast(data, call.bytes, call.root, call.context); });
  }
  void DoBarrier(const CollectiveCall& call) override {
    Delayed(call, [&] { inner_->Barrier(call.context); });
  }
  std::unique_ptr<ProcessGroup> DoFork(std::string name) override {
    const uint64_t key = Mix64(key_, HashName(name));
    return std::make_unique<DelayedGroup>(inner_->Fork(std::move(name)), options_, key);
  }

 private:
  template <typename Body>
  void Delayed(const CollectiveCall& call, const Body& body) {
    const auto random = Philox4x32(key_, call.sequence, static_cast<uint64_t>(rank()));
    Sleep(random[0]);
    body();
    Sleep(random[1]);
  }
  void Sleep(uint32_t random) const {
    std::this_thread::sleep_for(
        absl::ToChronoNanoseconds(options_.max_delay * UniformOpen(random)));
  }

  const std::shared_ptr<ProcessGroup> inner_;
  const DelayOptions options_;
  const uint64_t key_;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeDelayedGroup(std::shared_ptr<ProcessGroup> inner,
                                               DelayOptions options) {
  return std::make_unique<DelayedGroup>(std::move(inner), options, Mix64(options.seed));
}

}  // namespace sherd
