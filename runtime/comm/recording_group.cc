#include "sherd/runtime/comm/recording_group.h"

#include <utility>

namespace sherd {
namespace {

class RecordingGroup final : public ProcessGroup {
 public:
  RecordingGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<CollectiveLog> log,
                 std::string name)
      : ProcessGroup(inner->rank(), inner->size(), inner->description()),
        inner_(std::move(inner)),
        log_(std::move(log)),
        name_(std::move(name)) {}

  void Abort(const absl::Status& why) noexcept override { inner_->Abort(why); }

 protected:
  void DoAllGather(const CollectiveCall& call, const void* shard, void* full) override {
    Note(call);
    inner_->AllGather(shard, full, call.bytes, call.context);
  }
  void DoReduceScatter(const CollectiveCall& call, const void* full, void* shard) override {
    Note(call);
    inner_->ReduceScatter(full, shard, call.bytes / SizeOf(call.dtype), call.dtype, call.add,
                          call.context);
  }
  void DoAllReduce(const CollectiveCall& call, void* data) override {
    Note(call);
    inner_->AllReduce(data, call.bytes / SizeOf(call.dtype), call.dtype, call.context);
  }
  void DoBroadcast(const CollectiveCall& call, void* data) override {
    Note(call);
    inner_->Broadcast(data, call.bytes, call.root, call.context);
  }
  void DoBarrier(const CollectiveCall& call) override {
    Note(call);
    inner_->Barrier(call.context);
  }
  std::unique_ptr<ProcessGroup> DoFork(std::string name) override {
    return std::make_unique<RecordingGroup>(inner_->Fork(name), log_, name);
  }

 private:
  void Note(const CollectiveCall& call) {
    log_->Append({.op = call.op,
                  .bytes = call.bytes,
                  .dtype = call.dtype,
                  .sequence = call.sequence,
                  .group = name_,
                  .module_path = call.context.module_path});
  }

  const std::shared_ptr<ProcessGroup> inner_;
  const std::shared_ptr<CollectiveLog> log_;
  const std::string name_;
};

}  // namespace

void CollectiveLog::Append(CollectiveRecord record) {
  std::lock_guard<std::mutex> lock(mutex_);
  records_.push_back(std::move(record));
}

std::vector<CollectiveRecord> CollectiveLog::records() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return records_;
}

int64_t CollectiveLog::count(CollectiveOp op) const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t count = 0;
  for (const CollectiveRecord& record : records_) count += record.op == op ? 1 : 0;
  return count;
}

int64_t CollectiveLog::bytes(CollectiveOp op) const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (const CollectiveRecord& record : records_) bytes += record.op == op ? record.bytes : 0;
  return bytes;
}

void CollectiveLog::Clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  records_.clear();
}

std::unique_ptr<ProcessGroup> MakeRecordingGroup(std::shared_ptr<ProcessGroup> inner,
                                                 std::shared_ptr<CollectiveLog> log) {
  return std::make_unique<RecordingGroup>(std::move(inner), std::move(log), "");
}

}  // namespace sherd
