#include "sherd/runtime/core/storage.h"

#include <utility>

namespace sherd {

Storage::Storage(Device device, int64_t bytes, MemoryCategory category)
    : device_(std::move(device)), bytes_(bytes), category_(category) {}

Storage::Storage(Ref<Storage> target, int64_t bytes)
    : device_(target->device()),
      bytes_(bytes),
      category_(target->category()),
      target_(std::move(target)) {}

Storage::~Storage() { Free(); }

void Storage::Allocate() {
  if (resident_) return;
  data_ = target_ ? target_->data() : device_.allocator().Allocate(bytes_, category_);
  resident_ = true;
}

void Storage::Free() {
  if (!resident_) return;
  if (!target_) device_.allocator().Free(data_, bytes_, category_);
  data_ = nullptr;
  resident_ = false;
}

}  // namespace sherd
