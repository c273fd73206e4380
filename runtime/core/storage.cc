#include "sherd/runtime/core/storage.h"

#include <utility>

namespace sherd {

Storage::Storage(Device device, int64_t bytes, MemoryCategory category)
    : device_(std::move(device)), bytes_(bytes), category_(category) {}

Storage::~Storage() { Free(); }

void Storage::Allocate() {
  if (resident_) return;
  data_ = device_.allocator().Allocate(bytes_, category_);
  resident_ = true;
}

void Storage::Free() {
  if (!resident_) return;
  device_.allocator().Free(data_, bytes_, category_);
  data_ = nullptr;
  resident_ = false;
}

}  // namespace sherd
