#include "sherd/runtime/cuda/internal/range.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/cuda/internal/check.h"
#include "sherd/runtime/cuda/internal/driver.h"

namespace sherd::cuda {
namespace {

class DeviceRange final : public AddressRange {
 public:
  DeviceRange(int index, const Driver& driver, int64_t most_bytes)
      : index_(index), driver_(driver) {
    property_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    property_.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = index};
    size_t page = 0;
    driver_.Check(driver_.granularity(&page, &property_, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                  "cuMemGetAllocationGranularity");
    page_ = static_cast<int64_t>(page);
    most_pages_ = most_bytes / page_;
    // Twice the memory, so that fragments leave room to go on above them.
    bytes_ = 2 * most_pages_ * page_;
    driver_.Check(driver_.reserve(&base_, static_cast<size_t>(bytes_), 0, 0, 0),
                  "cuMemAddressReserve");
    pages_.resize(static_cast<size_t>(2 * most_pages_));
  }

  ~DeviceRange() override {
    cudaSetDevice(index_);
    for (size_t page = 0; page < pages_.size(); ++page) {
      if (pages_[page].mapped) Unmap(page);
    }
    driver_.free(base_, static_cast<size_t>(bytes_));
  }

  char* base() const override { return reinterpret_cast<char*>(base_); }
  int64_t bytes() const override { return bytes_; }
  int64_t page() const override { return page_; }

  bool Commit(int64_t begin, int64_t end) override {
    const size_t first = static_cast<size_t>(begin / page_);
    const size_t last = static_cast<size_t>((end + page_ - 1) / page_);
    for (size_t page = first; page < last; ++page) {
      if (!pages_[page].mapped && !Map(page)) return false;
    }
    return true;
  }

  void Decommit(int64_t begin, int64_t end) override {
    bool waited = false;
    for (int64_t page = begin / page_; page < end / page_; ++page) {
      if (!pages_[static_cast<size_t>(page)].mapped) continue;
      if (!std::exchange(waited, true)) {
        Check(cudaSetDevice(index_), "cudaSetDevice");
        Check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      }
      Unmap(static_cast<size_t>(page));
    }
  }

 private:
  struct Page {
    CUmemGenericAllocationHandle handle = {};
    bool mapped = false;
  };

  CUdeviceptr AddressOf(size_t page) const { return base_ + page * static_cast<size_t>(page_); }

  bool Map(size_t page) {
    if (mapped_ == most_pages_) return false;
    Check(cudaSetDevice(index_), "cudaSetDevice");
    const size_t bytes = static_cast<size_t>(page_);
    Page& p = pages_[page];
    if (driver_.create(&p.handle, bytes, &property_, 0) != CUDA_SUCCESS) return false;
    const CUmemAccessDesc access = {.location = property_.location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    bool done = driver_.map(AddressOf(page), bytes, 0, p.handle, 0) == CUDA_SUCCESS;
    if (done && driver_.set_access(AddressOf(page), bytes, &access, 1) != CUDA_SUCCESS) {
      driver_.unmap(AddressOf(page), bytes);
      done = false;
    }
    if (!done) {
      driver_.release(p.handle);
      return false;
    }
    p.mapped = true;
    ++mapped_;
    return true;
  }

  void Unmap(size_t page) {
    driver_.unmap(AddressOf(page), static_cast<size_t>(page_));
    driver_.release(pages_[page].handle);
    pages_[page].mapped = false;
    --mapped_;
  }

  const int index_;
  const Driver driver_;
  CUmemAllocationProp property_ = {};
  CUdeviceptr base_ = 0;
  int64_t bytes_ = 0;
  int64_t page_ = 0;
  int64_t most_pages_ = 0;
  int64_t mapped_ = 0;
  std::vector<Page> pages_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AddressRange>> MakeRange(int index, int64_t most_bytes) {
  absl::StatusOr<Driver> driver = LoadDriver();
  if (!driver.ok()) return driver.status();
  try {
    return std::make_unique<DeviceRange>(index, *driver, most_bytes);
  } catch (const Error& error) {
    return error.status();
  }
}

}  // namespace sherd::cuda
