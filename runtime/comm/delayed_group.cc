#include "sherd/runtime/comm/delayed_group.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "sherd/runtime/comm/forwarding_group.h"
#include "sherd/runtime/core/random.h"

namespace sherd {
namespace {

class DelayedGroup final : public ForwardingGroup {
 public:
  DelayedGroup(std::shared_ptr<ProcessGroup> inner, DelayOptions options, uint64_t key)
      : ForwardingGroup(std::move(inner)), options_(options), key_(key) {}

 protected:
  void Before(const CollectiveCall& call) override { Sleep(call, 0); }
  void After(const CollectiveCall& call) override { Sleep(call, 1); }
  std::unique_ptr<ProcessGroup> Wrap(std::unique_ptr<ProcessGroup> inner,
                                     const std::string& name) override {
    return std::make_unique<DelayedGroup>(std::move(inner), options_, Mix64(key_, HashName(name)));
  }

 private:
  void Sleep(const CollectiveCall& call, size_t which) const {
    const auto random = Philox4x32(key_, call.sequence, static_cast<uint64_t>(rank()));
    std::this_thread::sleep_for(
        absl::ToChronoNanoseconds(options_.max_delay * UniformOpen(random[which])));
  }

  const DelayOptions options_;
  const uint64_t key_;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeDelayedGroup(std::shared_ptr<ProcessGroup> inner,
                                               DelayOptions options) {
  return std::make_unique<DelayedGroup>(std::move(inner), options, Mix64(options.seed));
}

}  // namespace sherd
