#include "sherd/runtime/comm/checked_group.h"

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "sherd/runtime/comm/forwarding_group.h"
#include "sherd/runtime/comm/internal/call_record.h"

namespace sherd {
namespace {

class CheckedGroup final : public ForwardingGroup {
 public:
  // `names`: what messages call the ranks of this group.
  CheckedGroup(std::shared_ptr<ProcessGroup> inner, CheckOptions options,
               std::unique_ptr<ProcessGroup> check, std::vector<int> names)
      : ForwardingGroup(std::move(inner)),
        options_(std::move(options)),
        check_(std::move(check)),
        names_(std::move(names)) {}

 protected:
  void Before(const CollectiveCall& call) override {
    if (call.sequence > static_cast<uint64_t>(options_.calls) || !options_.checks->checking()) {
      return;
    }
    options_.checks->Count();
    const internal::CallRecord own = internal::RecordOf(call);
    std::vector<internal::CallRecord> records(static_cast<size_t>(size()));
    check_->AllGather(&own, records.data(), sizeof(own));
    std::vector<internal::NamedCall> calls;
    for (size_t r = 0; r < records.size(); ++r) calls.push_back({names_[r], records[r], ""});
    const std::string disagreement = internal::Disagreement(calls, names_);
    if (!disagreement.empty()) Fail(disagreement);
  }

  std::unique_ptr<ProcessGroup> Wrap(std::unique_ptr<ProcessGroup> inner,
                                     const std::string&) override {
    std::unique_ptr<ProcessGroup> check = inner->Fork("check");
    std::vector<int> names = names_;
    if (inner->size() < size()) {
      const int own = names_[static_cast<size_t>(rank())];
      names.resize(static_cast<size_t>(inner->size()));
      check->AllGather(&own, names.data(), sizeof(own));
    }
    return std::make_unique<CheckedGroup>(std::move(inner), options_, std::move(check),
                                          std::move(names));
  }

 private:
  [[noreturn]] void Fail(const std::string& disagreement) {
    // A rank that is still comparing would hear of the abort instead.
    try {
      check_->Barrier();
    } catch (const Error&) {
      // Others were quicker; they say the same.
    }
    const absl::Status status = absl::FailedPreconditionError(disagreement);
    inner().Abort(status);
    ThrowError(Error(status));
  }

  const CheckOptions options_;
  const std::unique_ptr<ProcessGroup> check_;
  const std::vector<int> names_;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeCheckedGroup(std::shared_ptr<ProcessGroup> inner,
                                               CheckOptions options) {
  if (options.checks == nullptr) options.checks = std::make_shared<CallChecks>();
  std::unique_ptr<ProcessGroup> check = inner->Fork("check");
  std::vector<int> names(static_cast<size_t>(inner->size()));
  std::iota(names.begin(), names.end(), 0);
  return std::make_unique<CheckedGroup>(std::move(inner), std::move(options), std::move(check),
                                        std::move(names));
}

}  // namespace sherd
