#include "sherd/checkpoint/offload.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/internal/region.h"
#include "sherd/checkpoint/internal/offloaded_region.h"
#include "sherd/runtime/base/error.h"

namespace sherd {

Tensor HostMemory::Allocate(const Device& device, DType dtype, const Shape& shape) {
  return Tensor::Empty(device, dtype, shape, MemoryCategory::kOffloaded);
}

void HostMemory::ToHost(const Tensor& from, const Tensor& to) {
  if (from.bytes() > 0) std::memcpy(to.raw(), from.raw(), static_cast<size_t>(from.bytes()));
}

void HostMemory::ToDevice(const Tensor& from, const Tensor& to) { HostMemory::ToHost(from, to); }

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

Offload::Offload(OffloadOptions options)
    : options_(Checked(std::move(options))), stream_("offload") {}
Offload::~Offload() = default;

namespace internal {

// One tensor, on the device, on the host, or on its way. Written by the thread that holds it: the
// worker while a job runs, the model's before it is queued and after the wait.
struct OffloadedRegion::Value {
  size_t kept;
  bool inner;
  size_t index;
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
      values_->list.push_back({kept, inner, i, std::move(tensor), std::move(host)});
    }
  };
  for (size_t k = 0; k < notes.kept.size(); ++k) {
    take(k, false, notes.kept[k].outputs);
    take(k, true, notes.kept[k].inner);
  }
  // A failed copy stops the worker. When the step that saw it is over, the next may start.
  if (offload_->regions_.empty()) offload_->stream_.Recover();
  offload_->regions_.push_back(this);
  offload_->stream_.Enqueue({.op = absl::StrCat("offload of ", what_)},
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
  // The store may be running: it writes `device`, so what is fetched gets memory in the job's own.
  auto fresh = std::make_shared<std::vector<Tensor>>();
  for (const Value& value : values_->list) {
    fresh->push_back(Tensor::Empty(value.host.device(), value.host.dtype(), value.host.shape()));
  }
  fetched_ = offload_->stream_.Enqueue(
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
