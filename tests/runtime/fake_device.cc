#include "tests/runtime/fake_device.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "sherd/runtime/base/error.h"

namespace sherd::testing {
namespace {

// What the queues of one device share.
struct Shared {
  std::recursive_mutex mutex;
  FakeDeviceCounts counts;
  int64_t lent_bytes = 0;
  std::vector<std::unique_ptr<char[]>> returned;  // kept, so that a late copy does no harm
  std::map<const char*, int64_t> returned_bytes;

  bool WasReturned(const void* address) const {
    const char* const at = static_cast<const char*>(address);
    auto next = returned_bytes.upper_bound(at);
    return next != returned_bytes.begin() && at < std::prev(next)->first + std::prev(next)->second;
  }
};

// The work of a queue, which events keep alive.
struct Pending {
  std::shared_ptr<Shared> shared;
  std::deque<std::function<void()>> work;
  int64_t asked = 0;
  int64_t done = 0;

  void RunUntil(int64_t count) {
    std::lock_guard<std::recursive_mutex> lock(shared->mutex);
    while (done < count) {
      const std::function<void()> next = std::move(work.front());
      work.pop_front();
      ++done;
      next();
    }
  }
  void Add(std::function<void()> next) {
    std::lock_guard<std::recursive_mutex> lock(shared->mutex);
    work.push_back(std::move(next));
    ++asked;
  }
};

class FakeEvent final : public DeviceEvent {
 public:
  FakeEvent(std::shared_ptr<Pending> pending, int64_t after)
      : pending_(std::move(pending)), after_(after) {}
  bool Done() const override {
    std::lock_guard<std::recursive_mutex> lock(pending_->shared->mutex);
    return pending_->done >= after_;
  }
  std::function<void()> Wait() const {
    return [pending = pending_, after = after_] { pending->RunUntil(after); };
  }

 private:
  const std::shared_ptr<Pending> pending_;
  const int64_t after_;
};

class FakeQueue final : public DeviceQueue {
 public:
  explicit FakeQueue(std::shared_ptr<Shared> shared) : pending_(std::make_shared<Pending>()) {
    pending_->shared = std::move(shared);
  }
  ~FakeQueue() override { pending_->RunUntil(pending_->asked); }

  std::shared_ptr<const DeviceEvent> Record() override {
    std::lock_guard<std::recursive_mutex> lock(pending_->shared->mutex);
    return std::make_shared<FakeEvent>(pending_, pending_->asked);
  }
  void WaitFor(const DeviceEvent& event) override {
    pending_->Add(static_cast<const FakeEvent&>(event).Wait());
  }
  void Synchronize() override {
    std::lock_guard<std::recursive_mutex> lock(pending_->shared->mutex);
    ++pending_->shared->counts.synchronizations;
    pending_->RunUntil(pending_->asked);
  }
  void Add(std::function<void()> next) { pending_->Add(std::move(next)); }

 private:
  const std::shared_ptr<Pending> pending_;
};

class FakeBackend final : public DeviceBackend {
 public:
  FakeBackend(const char* begin, const char* end) : begin_(begin), end_(end) {}

  DeviceQueue& compute_queue() const override { return *compute_; }
  std::unique_ptr<DeviceQueue> MakeQueue(const std::string&) const override {
    return std::make_unique<FakeQueue>(shared_);
  }
  void Zero(void* to, int64_t bytes) const override {
    Add([=] { std::memset(to, 0, static_cast<size_t>(bytes)); });
  }
  void Copy(void* to, const void* from, int64_t bytes) const override {
    Add([shared = shared_, to, from, bytes] {
      shared->counts.stale_copies += shared->WasReturned(to) || shared->WasReturned(from);
      std::memcpy(to, from, static_cast<size_t>(bytes));
    });
  }
  void CopyFromHost(void* to, const void* from, int64_t bytes) const override {
    Copy(to, from, bytes);
    queue().Synchronize();
  }
  void CopyToHost(void* to, const void* from, int64_t bytes) const override {
    CopyFromHost(to, from, bytes);
  }
  void CopyFromHostLater(void* to, const void* from, int64_t bytes) const override {
    Copy(to, from, bytes);
  }
  void CopyToHostLater(void* to, const void* from, int64_t bytes) const override {
    Copy(to, from, bytes);
  }
  std::shared_ptr<void> HostMemory(int64_t bytes) const override {
    Lend(bytes);
    return std::shared_ptr<void>(new char[static_cast<size_t>(bytes)], [this, bytes](void* memory) {
      Lend(-bytes);
      std::lock_guard<std::recursive_mutex> lock(shared_->mutex);
      shared_->returned.emplace_back(static_cast<char*>(memory));
      shared_->returned_bytes[static_cast<char*>(memory)] = bytes;
    });
  }
  bool Owns(const void* address) const override {
    const char* const at = static_cast<const char*>(address);
    return begin_ <= at && at < end_;
  }
  const kernels::KernelBackend& kernels() const override {
    ThrowError(Error(absl::StatusCode::kUnimplemented, "a fake device has no kernels"));
  }
  std::string Describe() const override { return "a fake device"; }

  FakeDeviceCounts counts() const {
    std::lock_guard<std::recursive_mutex> lock(shared_->mutex);
    return shared_->counts;
  }

 private:
  void Add(std::function<void()> work) const {
    static_cast<FakeQueue&>(queue()).Add(std::move(work));
  }
  void Lend(int64_t bytes) const {
    std::lock_guard<std::recursive_mutex> lock(shared_->mutex);
    shared_->lent_bytes += bytes;
    shared_->counts.host_bytes = std::max(shared_->counts.host_bytes, shared_->lent_bytes);
  }

  const char* const begin_;
  const char* const end_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  const std::unique_ptr<FakeQueue> compute_ = std::make_unique<FakeQueue>(shared_);
};

}  // namespace

Device MakeFakeDevice() {
  std::unique_ptr<AddressRange> range = MakeHostRange(int64_t{4} << 30);
  const char* const begin = range->base();
  auto backend = std::make_unique<FakeBackend>(begin, begin + range->bytes());
  return Device::Of({DeviceKind::kCuda, 0}, std::move(range), std::move(backend));
}

FakeDeviceCounts CountsOf(const Device& device) {
  return static_cast<const FakeBackend&>(*device.backend()).counts();
}

}  // namespace sherd::testing
