#include "sherd/runtime/comm/nccl_group.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/base/status_of.h"
#include "sherd/runtime/comm/internal/nccl_link.h"
#include "sherd/runtime/comm/internal/nccl_sum.h"

namespace sherd {
namespace {

using internal::CastOnDevice;
using internal::NcclChannel;
using internal::NcclLink;
using internal::SumOnDevice;

constexpr int64_t kAlignment = 64;

ncclDataType_t NcclTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return ncclFloat32;
    case DType::kF64:
      return ncclFloat64;
    case DType::kBF16:
      return ncclBfloat16;
    case DType::kF16:
      return ncclFloat16;
    case DType::kI32:
      return ncclInt32;
    case DType::kI64:
      return ncclInt64;
  }
  return ncclFloat32;
}

char* At(void* base, int64_t bytes) { return static_cast<char*>(base) + bytes; }
const char* At(const void* base, int64_t bytes) { return static_cast<const char*>(base) + bytes; }

// The first error of two answers.
ncclResult_t Both(ncclResult_t a, ncclResult_t b) { return a == ncclSuccess ? b : a; }

// Device memory that a group keeps for its reductions.
//
// [Note: who may use staging] Uses follow each other by events, whatever queue they are asked of.
// New memory may have been freed by a thread whose work still reads it; that was asked of the
// device's own queue.
class DeviceStaging {
 public:
  explicit DeviceStaging(const Device& device) : device_(device) {}
  ~DeviceStaging() { Release(); }
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;

  // At least `bytes`, for what the calling thread asks of its queue from now on.
  char* Take(int64_t bytes) {
    DeviceQueue& queue = device_.backend()->queue();
    if (bytes > bytes_) {
      Release();
      memory_ = device_.allocator().Allocate(bytes, MemoryCategory::kStaging);
      bytes_ = bytes;
      queue.WaitFor(*device_.backend()->compute_queue().Record());
    }
    if (used_ != nullptr) queue.WaitFor(*used_);
    return static_cast<char*>(memory_);
  }
  // The calling thread's queue uses it until now.
  void NoteUse() { used_ = device_.backend()->queue().Record(); }

 private:
  void Release() noexcept {
    try {
      if (used_ != nullptr && !used_->Done()) {
        device_.backend()->queue().WaitFor(*used_);
        device_.backend()->queue().Synchronize();
      }
    } catch (const Error&) {
      // The device is lost, so it works no more.
    }
    used_ = nullptr;
    device_.allocator().Free(memory_, bytes_, MemoryCategory::kStaging);
    memory_ = nullptr;
    bytes_ = 0;
  }

  const Device device_;
  void* memory_ = nullptr;
  int64_t bytes_ = 0;
  std::shared_ptr<const DeviceEvent> used_;
};

class NcclGroup final : public ProcessGroup {
 public:
  NcclGroup(std::shared_ptr<NcclLink> link, std::shared_ptr<ProcessGroup> control, std::string name,
            std::vector<int> members)
      : ProcessGroup(control->rank(), control->size(),
                     absl::StrCat("nccl beside ", control->description())),
        link_(std::move(link)),
        control_(std::move(control)),
        device_(link_->device()),
        name_(std::move(name)),
        staging_(device_),
        channel_(*link_, control_, name_, std::move(members)) {}

  void Abort(const absl::Status& why) noexcept override { link_->Abort(why); }
  void Fail(const absl::Status& why) noexcept override { link_->Fail(why); }
  absl::Status Failure() const override {
    const absl::Status own = link_->failure();
    return own.ok() ? control_->Failure() : own;
  }
  bool Queues() const override { return size() > 1; }

 protected:
  void DoAllGather(const CollectiveCall& call, const void* shard, void* full) override {
    if (!OnDevice(call, {shard, full})) {
      return control_->AllGather(shard, full, call.bytes, call.context);
    }
    if (call.bytes == 0) return;
    if (size() == 1) {
      if (shard != full) device_.Copy(full, shard, call.bytes);
      return;
    }
    channel_.Launch(call, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllGather(shard, full, static_cast<size_t>(call.bytes), ncclUint8, comm, stream);
    });
  }

  void DoReduceScatter(const CollectiveCall& call, const void* full, void* shard) override {
    const int64_t elems = call.bytes / SizeOf(call.dtype);
    if (!OnDevice(call, {full, shard})) {
      return control_->ReduceScatter(full, shard, elems, call.types, call.add, call.context);
    }
    if (elems == 0 || (size() == 1 && shard == full && call.types.uniform())) return;
    if (!IsNccls(call)) return ReduceInRankOrder(call, full, shard, elems);
    channel_.Launch(call, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclReduceScatter(full, shard, static_cast<size_t>(elems), NcclTypeOf(call.dtype),
                               ncclSum, comm, stream);
    });
  }

  void DoAllReduce(const CollectiveCall& call, void* data) override {
    const int64_t elems = call.bytes / SizeOf(call.dtype);
    if (!OnDevice(call, {data})) {
      return control_->AllReduce(data, elems, call.types.full, call.types.wire, call.context);
    }
    if (elems == 0 || (size() == 1 && call.types.uniform())) return;
    if (!IsNccls(call)) return AllReduceInRankOrder(call, data, elems);
    channel_.Launch(call, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclAllReduce(data, data, static_cast<size_t>(elems), NcclTypeOf(call.dtype), ncclSum,
                           comm, stream);
    });
  }

  void DoBroadcast(const CollectiveCall& call, void* data) override {
    if (!OnDevice(call, {data})) {
      return control_->Broadcast(data, call.bytes, call.root, call.context);
    }
    if (call.bytes == 0 || size() == 1) return;
    channel_.Launch(call, [&](ncclComm_t comm, cudaStream_t stream) {
      return ncclBroadcast(data, data, static_cast<size_t>(call.bytes), ncclUint8, call.root, comm,
                           stream);
    });
  }

  void DoBarrier(const CollectiveCall& call) override { control_->Barrier(call.context); }

  std::unique_ptr<ProcessGroup> DoFork(std::string name) override {
    std::shared_ptr<ProcessGroup> control = control_->Fork(name);
    return Child(std::move(control), name, channel_.members());
  }
  std::unique_ptr<ProcessGroup> DoSplit(std::string name, std::span<const int> ranks) override {
    std::shared_ptr<ProcessGroup> control = control_->Split(name, ranks);
    std::vector<int> members;
    for (int r : ranks) members.push_back(channel_.members()[static_cast<size_t>(r)]);
    return Child(std::move(control), name, std::move(members));
  }

 private:
  std::unique_ptr<ProcessGroup> Child(std::shared_ptr<ProcessGroup> control,
                                      const std::string& name, std::vector<int> members) {
    std::string path = name_ == "world" ? name : absl::StrCat(name_, "/", name);
    return std::make_unique<NcclGroup>(link_, std::move(control), std::move(path),
                                       std::move(members));
  }

  // Whether all buffers are the device's. Nothing, or what lies nowhere, goes with the others.
  bool OnDevice(const CollectiveCall& call, std::initializer_list<const void*> buffers) const {
    ThrowIfError(Failure());
    int64_t owned = 0, others = 0;
    for (const void* buffer : buffers) {
      if (buffer == nullptr) continue;
      ++(device_.backend()->Owns(buffer) ? owned : others);
    }
    if (owned > 0 && others > 0) {
      ThrowInvalidArgument(absl::StrCat("one buffer is in the memory of ", device_.id().ToString(),
                                        ", the other is not"),
                           call.context);
    }
    return call.bytes == 0 || owned > 0;
  }

  // Whether NCCL's own sum does what is asked.
  bool IsNccls(const CollectiveCall& call) const {
    return call.types.uniform() && SizeOf(call.dtype) >= 4 && !call.add && size() > 1 &&
           !link_->options().rank_order;
  }

  // Elements of a piece that need `elem_bytes` of staging each.
  int64_t PieceElems(int64_t elems, int64_t elem_bytes) const {
    const int64_t most = link_->options().staging_bytes / elem_bytes / kAlignment * kAlignment;
    const int64_t rounded = (elems + kAlignment - 1) / kAlignment * kAlignment;
    return std::clamp(most, kAlignment, rounded);
  }

  // Sends piece r of `from` to rank r, and leaves what rank r sent at `to`; both in the wire's
  // dtype, at so many elements from each other. The own piece stays.
  void AllToAll(const CollectiveCall& call, const void* from, int64_t from_stride, char* to,
                int64_t to_stride, int64_t elems) {
    const int64_t size_bytes = SizeOf(call.dtype);
    const ncclDataType_t type = NcclTypeOf(call.dtype);
    channel_.Launch(call, [&](ncclComm_t comm, cudaStream_t stream) {
      ncclResult_t result = ncclSuccess;
      for (int i = 1; i < size(); ++i) {
        const int next = (rank() + i) % size();
        const int last = (rank() + size() - i) % size();
        const size_t count = static_cast<size_t>(elems);
        result = Both(result, ncclSend(At(from, next * from_stride * size_bytes), count, type, next,
                                       comm, stream));
        result = Both(result, ncclRecv(At(to, last * to_stride * size_bytes), count, type, last,
                                       comm, stream));
      }
      return result;
    });
  }

  void ReduceInRankOrder(const CollectiveCall& call, const void* full, void* shard, int64_t elems) {
    const auto [full_type, wire, shard_type] = call.types;
    const int64_t in = SizeOf(full_type);
    const bool casts = full_type != wire && size() > 1;
    const int64_t most = PieceElems(elems, size() * SizeOf(wire) * (casts ? 2 : 1));
    const int64_t half = size() * most * SizeOf(wire);
    char* const received = size() > 1 ? staging_.Take(casts ? 2 * half : half) : nullptr;
    for (int64_t begin = 0; begin < elems; begin += most) {
      const int64_t n = std::min(most, elems - begin);
      const char* const own = At(full, (rank() * elems + begin) * in);
      if (casts) {
        CastOnDevice(device_, At(full, begin * in), full_type, received + half, wire, n, size(),
                     elems, most);
        AllToAll(call, received + half, most, received, most, n);
      } else if (size() > 1) {
        AllToAll(call, At(full, begin * in), elems, received, most, n);
      }
      SumOnDevice(device_, {.wire = wire,
                            .size = size(),
                            .rank = rank(),
                            .parts = received,
                            .stride = most,
                            .own = own,
                            .own_dtype = full_type,
                            .out = At(shard, begin * SizeOf(shard_type)),
                            .rounded = shard_type,
                            .out_dtype = shard_type,
                            .add = call.add,
                            .elems = n});
    }
    if (received != nullptr) staging_.NoteUse();
  }

  // Each rank sums a part, as above, rounds it to the wire's dtype, and the parts are gathered.
  void AllReduceInRankOrder(const CollectiveCall& call, void* data, int64_t elems) {
    const DType dtype = call.types.full;
    const DType wire = call.types.wire;
    if (size() == 1) {
      // Through the wire and back.
      return SumOnDevice(device_, {.wire = wire,
                                   .own = data,
                                   .own_dtype = dtype,
                                   .out = data,
                                   .rounded = dtype,
                                   .out_dtype = dtype,
                                   .elems = elems});
    }
    const int64_t most = PieceElems((elems + size() - 1) / size(), 2 * size() * SizeOf(wire));
    const int64_t half = size() * most * SizeOf(wire);
    char* const sums = staging_.Take(2 * half);
    char* const received = sums + half;
    for (int64_t begin = 0; begin < elems; begin += size() * most) {
      const int64_t n = std::min(size() * most, elems - begin);
      const int64_t part = PieceElems((n + size() - 1) / size(), 2 * size() * SizeOf(wire));
      char* const own = sums + rank() * part * SizeOf(wire);
      CastOnDevice(device_, At(data, begin * SizeOf(dtype)), dtype, sums, wire, n);
      AllToAll(call, sums, part, received, part, part);
      SumOnDevice(device_, {.wire = wire,
                            .size = size(),
                            .rank = rank(),
                            .parts = received,
                            .stride = part,
                            .own = own,
                            .own_dtype = wire,
                            .out = own,
                            .rounded = dtype,
                            .out_dtype = wire,
                            .elems = part});
      channel_.Launch(call, [&](ncclComm_t comm, cudaStream_t stream) {
        return ncclAllGather(own, sums, static_cast<size_t>(part), NcclTypeOf(wire), comm, stream);
      });
      CastOnDevice(device_, sums, wire, At(data, begin * SizeOf(dtype)), dtype, n);
    }
    staging_.NoteUse();
  }

  const std::shared_ptr<NcclLink> link_;
  const std::shared_ptr<ProcessGroup> control_;
  const Device device_;
  const std::string name_;
  DeviceStaging staging_;
  NcclChannel channel_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectNccl(std::shared_ptr<ProcessGroup> control,
                                                          Device device, NcclOptions options) {
  SHERD_CHECK(device.defined() && device.backend() != nullptr, "a device that has no backend");
  const absl::StatusOr<std::string> shared =
      StatusOrOf([&] { return FindSharedDevice(*control, device, options.host); });
  if (!shared.ok()) return shared.status();
  if (!shared->empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        *shared,
        ": NCCL needs one for each rank; give each rank a device of its own, or let ranks that "
        "share one talk through Gloo"));
  }
  std::vector<int> members(static_cast<size_t>(control->size()));
  std::iota(members.begin(), members.end(), 0);
  return StatusOrOf([&]() -> std::unique_ptr<ProcessGroup> {
    auto link = std::make_shared<NcclLink>(control, std::move(device), options);
    return std::make_unique<NcclGroup>(std::move(link), std::move(control), "world",
                                       std::move(members));
  });
}

}  // namespace sherd
