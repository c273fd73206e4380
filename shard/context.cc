#include "sherd/shard/context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/shard/unit.h"

namespace sherd {

std::shared_ptr<ShardContext> ShardContext::Of(const Mesh& mesh) {
  if (!mesh.defined()) ThrowInvalidArgument("an undefined mesh was given", {.op = "shard"});
  std::shared_ptr<void>& slot = mesh.slot();
  if (slot == nullptr) slot = std::make_shared<ShardContext>(mesh);
  return std::static_pointer_cast<ShardContext>(slot);
}

// The copy of the mesh kept here gets a slot of its own: one shared with the original would own
// itself.
ShardContext::ShardContext(const Mesh& mesh)
    : mesh_(mesh.shared_shard_group(), nullptr, mesh.device(), mesh.log()),
      gather_group_(mesh.shard_group().Fork("gather")),
      reduce_group_(mesh.shard_group().Fork("reduce")),
      control_(mesh.shard_group().Fork("control")) {
  if (size() > 1) {
    gather_stream_ = std::make_unique<Stream>("gather");
    reduce_stream_ = std::make_unique<Stream>("reduce");
  }
}

ShardContext::~ShardContext() = default;

Work ShardContext::Gather(ErrorContext context, std::function<void(ProcessGroup&)> job) {
  return gather_stream_->Enqueue(std::move(context),
                                 [this, job = std::move(job)] { job(*gather_group_); });
}

void ShardContext::Reduce(ErrorContext context, std::function<void(ProcessGroup&)> job) {
  reductions_.push_back(reduce_stream_->Enqueue(
      std::move(context), [this, job = std::move(job)] { job(*reduce_group_); }));
}

void ShardContext::WaitReductions(int in_flight) {
  while (static_cast<int>(reductions_.size()) > in_flight) {
    const Work oldest = std::move(reductions_.front());
    reductions_.pop_front();
    try {
      oldest.Wait();
    } catch (const Error& error) {
      Fail(error.what());
      throw;
    }
  }
}

void ShardContext::Unregister(Unit* unit) {
  units_.erase(std::remove(units_.begin(), units_.end(), unit), units_.end());
  prefetcher_.Forget(unit);
  if (kept_ == unit) kept_ = nullptr;
}

void ShardContext::KeepForNow(Unit* unit) {
  ScopeOpens(unit);
  kept_ = unit;
}

void ShardContext::ScopeOpens(Unit* unit) {
  Unit* kept = std::exchange(kept_, nullptr);
  if (kept != nullptr && kept != unit && !kept->open()) kept->Reshard();
}

void ShardContext::ReshardIdle() {
  kept_ = nullptr;
  for (Unit* unit : units_) {
    if (!unit->open()) unit->Reshard();
  }
}

void ShardContext::Fail(const std::string& what) noexcept {
  if (failure_.has_value()) return;
  failure_ = what;
  if (size() > 1) gather_group_->Abort(absl::AbortedError(what));
  prefetcher_.DropAhead();
}

void ShardContext::CheckUsable() const {
  if (!failure_.has_value()) return;
  ThrowFailedPrecondition(absl::StrCat(
      "an earlier step failed: ", *failure_,
      size() > 1 ? "; its groups were aborted: make a new World" : "; call Recover() to go on"));
}

void ShardContext::Recover() {
  if (failure_.has_value() && size() > 1) CheckUsable();
  WaitReductions(0);
  kept_ = nullptr;
  prefetcher_.Reset();
  for (Unit* unit : units_) unit->Clear();
  failure_.reset();
}

}  // namespace sherd
