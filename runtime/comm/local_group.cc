#include "sherd/runtime/comm/local_group.h"

#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/comm/internal/wire_cast.h"

namespace sherd {
namespace {

// What a group and its forks share: whether, and why, it was aborted.
class AbortState {
 public:
  void Set(const absl::Status& why) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!status_.ok()) return;
    status_ = absl::AbortedError(absl::StrCat("rank 0 aborted: ", why.message()));
  }
  void SetAsItIs(const absl::Status& why) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = why;
  }
  absl::Status status() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }
  void Check() const { ThrowIfError(status()); }

 private:
  mutable std::mutex mutex_;
  absl::Status status_;
};

class LocalGroup final : public ProcessGroup {
 public:
  LocalGroup(const std::string& name, std::shared_ptr<AbortState> abort)
      : ProcessGroup(0, 1, absl::StrCat("local '", name, "' rank 0 of 1")),
        abort_(std::move(abort)) {}

  void Abort(const absl::Status& why) noexcept override { abort_->Set(why); }
  void Fail(const absl::Status& why) noexcept override { abort_->SetAsItIs(why); }
  absl::Status Failure() const override { return abort_->status(); }

 protected:
  void DoAllGather(const CollectiveCall& call, const void* shard, void* full) override {
    abort_->Check();
    if (shard != full && call.bytes > 0) std::memcpy(full, shard, static_cast<size_t>(call.bytes));
  }
  void DoReduceScatter(const CollectiveCall& call, const void* full, void* shard) override {
    abort_->Check();
    internal::PassThroughWire(full, shard, call.bytes / SizeOf(call.dtype), call.types, call.add);
  }
  void DoAllReduce(const CollectiveCall& call, void* data) override {
    abort_->Check();
    internal::RoundThroughWire(data, call.bytes / SizeOf(call.dtype), call.types.full,
                               call.types.wire);
  }
  void DoBroadcast(const CollectiveCall&, void*) override { abort_->Check(); }
  void DoBarrier(const CollectiveCall&) override { abort_->Check(); }
  std::unique_ptr<ProcessGroup> DoFork(std::string name) override {
    return std::make_unique<LocalGroup>(name, abort_);
  }
  std::unique_ptr<ProcessGroup> DoSplit(std::string name, std::span<const int>) override {
    return std::make_unique<LocalGroup>(name, abort_);
  }

 private:
  std::shared_ptr<AbortState> abort_;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeLocalGroup() {
  return std::make_unique<LocalGroup>("world", std::make_shared<AbortState>());
}

}  // namespace sherd
