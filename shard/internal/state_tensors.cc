#include "sherd/shard/internal/state_tensors.h"

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace sherd::internal {
namespace {

class Collector final : public OptimizerStateVisitor {
 public:
  explicit Collector(StateParts& parts) : parts_(parts) {}
  void OnTensor(const Parameter& parameter, std::string_view name, const Tensor& local) override {
    parts_.tensors.push_back({parameter, std::string(name), local, parameter.local_offset()});
  }
  void OnCount(const Parameter& parameter, std::string_view name, int64_t& count) override {
    parts_.counts.push_back({parameter, std::string(name), &count});
  }

 private:
  StateParts& parts_;
};

}  // namespace

std::string StateTensor::Describe() const {
  return name == kValue ? parameter.name() : absl::StrCat(name, " of ", parameter.name());
}

absl::StatusOr<StateParts> PartsOf(const TrainingState& state) {
  if (state.model == nullptr) return absl::InvalidArgumentError("a state needs a model");
  StateParts parts;
  for (const Parameter& parameter : state.model->parameters()) {
    if (!parameter.local().defined()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "parameter '", parameter.name(), "' has no memory yet: initialise it first"));
    }
    parts.tensors.push_back({parameter, kValue, parameter.local(), parameter.local_offset()});
  }
  if (state.optimizer == nullptr) return parts;
  Collector collector(parts);
  try {
    state.optimizer->VisitState(collector);
  } catch (const Error& error) {
    return error.status();
  }
  return parts;
}

}  // namespace sherd::internal
