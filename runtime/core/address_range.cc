#include "sherd/runtime/core/address_range.h"

#include <sys/mman.h>

#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

class HostRange final : public AddressRange {
 public:
  // A smaller range serves as well where the system limits addresses (ulimit -v, valgrind).
  explicit HostRange(int64_t most) {
    for (bytes_ = most; bytes_ >= (int64_t{1} << 30); bytes_ /= 2) {
      void* base = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base != MAP_FAILED) {
        base_ = static_cast<char*>(base);
        return;
      }
    }
    ThrowError(Error(absl::StatusCode::kResourceExhausted, "cannot reserve a range of addresses"));
  }
  ~HostRange() override { munmap(base_, static_cast<size_t>(bytes_)); }

  char* base() const override { return base_; }
  int64_t bytes() const override { return bytes_; }
  int64_t page() const override { return 4096; }
  bool Commit(int64_t, int64_t) override { return true; }
  void Decommit(int64_t begin, int64_t end) override {
    madvise(base_ + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
  }

 private:
  char* base_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<AddressRange> MakeHostRange(int64_t bytes) {
  return std::make_unique<HostRange>(bytes);
}

}  // namespace sherd
