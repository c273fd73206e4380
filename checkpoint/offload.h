#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "sherd/runtime/core/stream.h"
#include "sherd/runtime/core/tensor.h"

namespace sherd {

namespace internal {
class OffloadedRegion;
}  // namespace internal

// Host memory, and the copies to and from it: the same memory for a CPU; page-locked blocks, kept
// for reuse, for a device with memory of its own.
//
// Threads: Allocate on the thread that runs the model, the copies on the worker of an Offload.
// Errors: what a copy throws surfaces where its values are waited for.
class HostMemory {
 public:
  virtual ~HostMemory() = default;
  // Memory for a tensor of `device`, contiguous. The default counts a CPU's under its own
  // allocator, as MemoryCategory::kOffloaded, and page-locked blocks nowhere.
  virtual Tensor Allocate(const Device& device, DType dtype, const Shape& shape);
  // Copy all elements, and return when both sides may be reused. Operands are contiguous and have
  // the same shape and dtype.
  virtual void ToHost(const Tensor& from, const Tensor& to);
  virtual void ToDevice(const Tensor& from, const Tensor& to);

 private:
  struct PageLocked;
  std::shared_ptr<PageLocked> page_locked_;
};

struct OffloadOptions {
  // How many calls ahead values are fetched: while one call is recomputed, those of so many calls
  // before it on the tape are on their way. Each costs the device memory of its values. 0 waits for
  // every copy.
  int prefetch = 1;
  std::shared_ptr<HostMemory> memory;  // null: the host's plain memory
};

// Moves what checkpoints keep to host memory until the backward needs it.
//
// One object is shared by all checkpoints of a model: CheckpointOptions::offload. After a call, its
// kept values are copied by a worker, each one's device memory is freed when its copy is done; when
// the recompute of a call begins, its values come back, and those of the calls before it follow.
// What the call returns stays on the device: the caller holds it there anyway.
// Threads: used by the thread that runs the model; the worker is its own. Ownership: outlives the
// tape's record through the checkpoints that use it.
class Offload {
 public:
  explicit Offload(OffloadOptions options = {});
  ~Offload();
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  // Returns when all copies begun so far have run. Errors: throws the first one's.
  void Synchronize();
  // Calls whose values are in host memory now, or on their way to or from it.
  int64_t regions() const { return static_cast<int64_t>(regions_.size()); }
  // Waits for a fetch that the recompute before had not begun, since the start.
  int64_t late_fetches() const { return late_fetches_; }

 private:
  friend class internal::OffloadedRegion;
  const OffloadOptions options_;
  std::vector<internal::OffloadedRegion*> regions_;  // in the order of their calls
  int64_t late_fetches_ = 0;
  Stream& StreamFor(const Device& device);
  std::optional<Stream> stream_;  // made for the first values; last: its worker ends first
};

}  // namespace sherd
