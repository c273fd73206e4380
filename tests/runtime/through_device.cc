#include "tests/runtime/through_device.h"

#include <string>
#include <utility>

namespace sherd::testing {
namespace {

// Memory of a device for one call.
class Block {
 public:
  Block(const Device& device, int64_t bytes)
      : device_(device),
        bytes_(bytes),
        data_(static_cast<char*>(device.allocator().Allocate(bytes, MemoryCategory::kBuffer))) {}
  ~Block() { device_.allocator().Free(data_, bytes_, MemoryCategory::kBuffer); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  char* data() const { return data_; }
  void Fill(const void* from) {
    if (bytes_ > 0) device_.CopyFromHost(data_, from, bytes_);
  }

 private:
  const Device device_;
  const int64_t bytes_;
  char* const data_;
};

class ThroughDevice final : public ProcessGroup {
 public:
  ThroughDevice(std::shared_ptr<ProcessGroup> inner, Device device)
      : ProcessGroup(inner->rank(), inner->size(), inner->description()),
        device_(std::move(device)),
        queue_(device_.backend()->MakeQueue("test")),
        inner_(std::move(inner)) {}

  void Abort(const absl::Status& why) noexcept override { inner_->Abort(why); }
  absl::Status Failure() const override { return inner_->Failure(); }

 protected:
  void DoAllGather(const CollectiveCall& call, const void* shard, void* full) override {
    const QueueScope scope(*device_.backend(), *queue_);
    Block whole(device_, call.bytes * size());
    Block part(device_, call.bytes);
    char* const own = whole.data() + rank() * call.bytes;
    const bool in_place = shard == static_cast<char*>(full) + rank() * call.bytes;
    if (in_place) {
      whole.Fill(full);
    } else {
      part.Fill(shard);
    }
    inner_->AllGather(in_place ? own : part.data(), whole.data(), call.bytes, call.context);
    Return(full, whole, call.bytes * size());
  }
  void DoReduceScatter(const CollectiveCall& call, const void* full, void* shard) override {
    const QueueScope scope(*device_.backend(), *queue_);
    const int64_t elems = call.bytes / SizeOf(call.dtype);
    const int64_t in = elems * SizeOf(call.types.full);
    const int64_t out = elems * SizeOf(call.types.shard);
    Block whole(device_, in * size());
    Block part(device_, out);
    const bool in_place = in == out && shard == static_cast<const char*>(full) + rank() * in;
    char* const target = in_place ? whole.data() + rank() * in : part.data();
    whole.Fill(full);
    if (call.add) part.Fill(shard);
    inner_->ReduceScatter(whole.data(), target, elems, call.types, call.add, call.context);
    Wait();
    if (out > 0) device_.CopyToHost(shard, target, out);
  }
  void DoAllReduce(const CollectiveCall& call, void* data) override {
    const QueueScope scope(*device_.backend(), *queue_);
    const int64_t elems = call.bytes / SizeOf(call.dtype);
    Block block(device_, elems * SizeOf(call.types.full));
    block.Fill(data);
    inner_->AllReduce(block.data(), elems, call.types.full, call.types.wire, call.context);
    Return(data, block, elems * SizeOf(call.types.full));
  }
  void DoBroadcast(const CollectiveCall& call, void* data) override {
    const QueueScope scope(*device_.backend(), *queue_);
    Block block(device_, call.bytes);
    block.Fill(data);
    inner_->Broadcast(block.data(), call.bytes, call.root, call.context);
    Return(data, block, call.bytes);
  }
  void DoBarrier(const CollectiveCall& call) override { inner_->Barrier(call.context); }
  std::unique_ptr<ProcessGroup> DoFork(std::string name) override {
    return MakeThroughDevice(inner_->Fork(std::move(name)), device_);
  }
  std::unique_ptr<ProcessGroup> DoSplit(std::string name, std::span<const int> ranks) override {
    return MakeThroughDevice(inner_->Split(std::move(name), ranks), device_);
  }

 private:
  void Wait() {
    queue_->Synchronize();
    ThrowIfError(inner_->Failure());
  }
  void Return(void* to, const Block& from, int64_t bytes) {
    Wait();
    if (bytes > 0) device_.CopyToHost(to, from.data(), bytes);
  }

  const Device device_;
  const std::unique_ptr<DeviceQueue> queue_;
  const std::shared_ptr<ProcessGroup> inner_;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeThroughDevice(std::shared_ptr<ProcessGroup> inner,
                                                Device device) {
  return std::make_unique<ThroughDevice>(std::move(inner), std::move(device));
}

}  // namespace sherd::testing
