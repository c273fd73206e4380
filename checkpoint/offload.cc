#include "sherd/checkpoint/offload.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/region.h"
#include "sherd/checkpoint/internal/offloaded_region.h"
#include "sherd/runtime/base/error.h"

namespace sherd {

// Blocks of page-locked memory, which is slow to make: they are kept, by size, as long as the last
// tensor in one.
struct HostMemory::PageLocked {
  Device cpu = Device::Cpu();  // what the tensors are said to live on
  std::mutex mutex;
  std::map<int64_t, std::vector<std::shared_ptr<void>>> free;
};

Tensor HostMemory::Allocate(const Device& device, DType dtype, const Shape& shape) {
  const DeviceBackend* const backend = device.backend();
  if (backend == nullptr) return Tensor::Empty(device, dtype, shape, MemoryCategory::kOffloaded);
  if (page_locked_ == nullptr) page_locked_ = std::make_shared<PageLocked>();
  const int64_t bytes = shape.numel() * SizeOf(dtype);
  std::shared_ptr<void> block;
  {
    std::lock_guard<std::mutex> lock(page_locked_->mutex);
    std::vector<std::shared_ptr<void>>& free = page_locked_->free[bytes];
    if (!free.empty()) {
      block = std::move(free.back());
      free.pop_back();
    }
  }
  if (block == nullptr) block = backend->HostMemory(bytes);
  void* const address = block.get();
  std::shared_ptr<void> lent(address, [block, bytes, pool = page_locked_](void*) {
    std::lock_guard<std::mutex> lock(pool->mutex);
    pool->free[bytes].push_back(block);
  });
  return Tensor::View(MakeRef<Storage>(page_locked_->cpu, std::move(lent), bytes), 0, dtype, shape);
}

void HostMemory::ToHost(const Tensor& from, const Tensor& to) {
  from.device().CopyToHost(to.raw(), from.raw(), from.bytes());
}

void HostMemory::ToDevice(const Tensor& from, const Tensor& to) {
  to.device().CopyFromHost(to.raw(), from.raw(), from.bytes());
}

namespace {

OffloadOptions Checked(OffloadOptions options) {
  if (options.prefetch < 0) {
    ThrowInvalidArgument(absl::StrCat("a prefetch of ", options.prefetch, " calls"),
                         {.op = "Offload"});
  }
  if (options.memory == nullptr) options.memory = std::make_shared<HostMemory>();
  return options;
}

}  // namespace

Offload::Offload(OffloadOptions options) : options_(Checked(std::move(options))) {}
Offload::~Offload() = default;

Stream& Offload::StreamFor(const Device& device) {
  if (!stream_.has_value()) stream_.emplace("offload", device);
  return *stream_;
}

void Offload::Synchronize() {
  if (stream_.has_value()) stream_->Synchronize();
}

namespace internal {

// One tensor, on the device, on the host, or on its way. Written by the thread that holds it: the
// worker while a job runs, the model's before it is queued and after the wait.
struct OffloadedRegion::Value {
  size_t kept;
  bool inner;
  size_t index;
  Device home;
  Tensor device;
  Tensor host;
};
struct OffloadedRegion::Values {
  std::vector<Value> list;
};

OffloadedRegion::OffloadedRegion(std::shared_ptr<Offload> offload, RegionNotes& notes,
                                 std::span<const Storage* const> stays, const std::string& what)
    : offload_(std::move(offload)), values_(std::make_shared<Values>()), what_(what) {
  HostMemory& memory = *offload_->options_.memory;
  const auto stays_here = [&](const Tensor& tensor) {
    return std::find(stays.begin(), stays.end(), tensor.storage().get()) != stays.end();
  };
  const auto take = [&](size_t kept, bool inner, Tensors& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      Tensor& tensor = tensors[i];
      if (tensor.bytes() == 0 || stays_here(tensor)) continue;
      Tensor host = memory.Allocate(tensor.device(), tensor.dtype(), tensor.shape());
      bytes_ += tensor.bytes();
      const Device home = tensor.device();
      values_->list.push_back({kept, inner, i, home, std::move(tensor), std::move(host)});
    }
  };
  for (size_t k = 0; k < notes.kept.size(); ++k) {
    take(k, false, notes.kept[k].outputs);
    take(k, true, notes.kept[k].inner);
  }
  // A failed copy stops the worker. When the step that saw it is over, the next may start.
  const bool first = offload_->regions_.empty();
  offload_->regions_.push_back(this);
  if (values_->list.empty()) return;
  Stream& stream = offload_->StreamFor(values_->list.front().home);
  if (first) stream.Recover();
  stream.Enqueue({.op = absl::StrCat("offload of ", what_)},
                 [values = values_, memory = offload_->options_.memory] {
                   for (Value& value : values->list) {
                     memory->ToHost(value.device, value.host);
                     value.device = Tensor();
                   }
                 });
}

OffloadedRegion::~OffloadedRegion() {
  std::vector<OffloadedRegion*>& all = offload_->regions_;
  const auto self = std::find(all.rbegin(), all.rend(), this);
  if (self != all.rend()) all.erase(std::next(self).base());
}

void OffloadedRegion::BeginFetch(bool retain) {
  if (fetching_ || back_) return;
  fetching_ = true;
  if (values_->list.empty()) return;
  // The store may be running: it writes `device`, so what is fetched gets memory in the job's own.
  auto fresh = std::make_shared<std::vector<Tensor>>();
  for (const Value& value : values_->list) {
    fresh->push_back(Tensor::Empty(value.home, value.host.dtype(), value.host.shape()));
  }
  fetched_ = offload_->stream_->Enqueue(
      {.op = absl::StrCat("fetch of ", what_)},
      [values = values_, memory = offload_->options_.memory, fresh, retain] {
        for (size_t i = 0; i < fresh->size(); ++i) {
          Value& value = values->list[i];
          memory->ToDevice(value.host, (*fresh)[i]);
          value.device = std::move((*fresh)[i]);
          if (!retain) value.host = Tensor();
        }
      });
}

void OffloadedRegion::Restore(RegionNotes& notes, bool retain) {
  if (back_) return;
  if (!fetching_) ++offload_->late_fetches_;
  BeginFetch(retain);
  const std::vector<OffloadedRegion*>& all = offload_->regions_;
  auto at = std::find(all.rbegin(), all.rend(), this);
  for (int n = 0; n < offload_->options_.prefetch && at != all.rend(); ++n) {
    if (++at == all.rend()) break;
    (*at)->BeginFetch(retain);
  }
  // Jobs run in order, and after one that failed the rest are refused with its error: this wait is
  // for the copy to the host too.
  fetched_.Wait();
  fetching_ = false;
  for (Value& value : values_->list) {
    KeptValues& kept = notes.kept[value.kept];
    (value.inner ? kept.inner : kept.outputs)[value.index] = std::move(value.device);
    value.device = Tensor();
    back_ |= !value.host.defined();
  }
}

void OffloadedRegion::Release(RegionNotes& notes) {
  if (back_) return;
  for (const Value& value : values_->list) {
    KeptValues& kept = notes.kept[value.kept];
    (value.inner ? kept.inner : kept.outputs)[value.index] = Tensor();
  }
}

}  // namespace internal
}  // namespace sherd
