#include "sherd/runtime/core/storage.h"

#include <utility>

#include "sherd/runtime/base/error.h"

namespace sherd {

Storage::Storage(Device device, int64_t bytes, MemoryCategory category)
    : device_(std::move(device)), bytes_(bytes), category_(category) {}

Storage::Storage(Ref<Storage> target, int64_t bytes)
    : device_(target->device()),
      bytes_(bytes),
      category_(target->category()),
      target_(std::move(target)) {}

Storage::Storage(Device device, std::shared_ptr<void> memory, int64_t bytes)
    : device_(std::move(device)),
      bytes_(bytes),
      category_(MemoryCategory::kBuffer),
      resident_(true),
      external_(true),
      memory_(std::move(memory)),
      data_(memory_.get()) {}

Storage::~Storage() { Free(); }

void Storage::Allocate() {
  if (resident_) return;
  if (external_) {
    ThrowFailedPrecondition("memory of another program was given back; it cannot be taken again");
  }
  data_ = target_ ? target_->data() : device_.allocator().Allocate(bytes_, category_);
  resident_ = true;
}

void Storage::Free() {
  if (!resident_) return;
  if (!target_ && !external_) device_.allocator().Free(data_, bytes_, category_);
  data_ = nullptr;
  resident_ = false;
  memory_.reset();
}

}  // namespace sherd
