#include "sherd/runtime/comm/recording_group.h"

#include <utility>

#include "sherd/runtime/comm/forwarding_group.h"

namespace sherd {
namespace {

class RecordingGroup final : public ForwardingGroup {
 public:
  RecordingGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<CollectiveLog> log,
                 std::string name)
      : ForwardingGroup(std::move(inner)), log_(std::move(log)), name_(std::move(name)) {}

 protected:
  void Before(const CollectiveCall& call) override {
    log_->Append({.op = call.op,
                  .bytes = call.bytes,
                  .dtype = call.dtype,
                  .sequence = call.sequence,
                  .group = name_,
                  .module_path = call.context.module_path});
  }
  std::unique_ptr<ProcessGroup> Wrap(std::unique_ptr<ProcessGroup> inner,
                                     const std::string& name) override {
    std::string path = name_.empty() ? name : name_ + "/" + name;
    return std::make_unique<RecordingGroup>(std::move(inner), log_, std::move(path));
  }

 private:
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
