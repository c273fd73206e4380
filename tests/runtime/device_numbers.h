#pragma once

#include <cstdint>
#include <vector>

#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/device.h"

namespace sherd::testing {

using Values = std::vector<int32_t>;

// i32, or what else has four bytes, in the memory of a device.
class Numbers {
 public:
  Numbers(const Device& device, const Values& values)
      : device_(device), bytes_(static_cast<int64_t>(values.size()) * 4) {
    data_ = device_.allocator().Allocate(bytes_, MemoryCategory::kBuffer);
    device_.CopyFromHost(data_, values.data(), bytes_);
  }
  ~Numbers() { device_.allocator().Free(data_, bytes_, MemoryCategory::kBuffer); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  int32_t* data() { return static_cast<int32_t*>(data_); }
  Values Read() const {
    Values values(static_cast<size_t>(bytes_ / 4));
    device_.CopyToHost(values.data(), data_, bytes_);
    return values;
  }

 private:
  const Device device_;
  const int64_t bytes_;
  void* data_;
};

}  // namespace sherd::testing
