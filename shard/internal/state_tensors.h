#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/runtime/core/tensor.h"
#include "sherd/shard/state.h"

namespace sherd::internal {

// The name of a parameter's own values among its tensors; an optimizer's have names of their own.
inline constexpr char kValue[] = "value";

// One tensor of a training state: what this rank has of it.
struct StateTensor {
  Parameter parameter;
  std::string name;  // kValue, "m", "v", ...
  Tensor local;      // 1-D: elements [begin, begin + local.numel()) of the flat whole
  int64_t begin = 0;

  // "w", or "m of w"
  std::string Describe() const;
  // In a rank's file.
  std::string Key() const { return name + ":" + parameter.name(); }
};

// One count of an optimizer.
struct StateCount {
  Parameter parameter;
  std::string name;
  int64_t* count = nullptr;
};

struct StateParts {
  std::vector<StateTensor> tensors;
  std::vector<StateCount> counts;
};

// The parts of a state, in an order that is the same on all ranks.
// Errors: kFailedPrecondition naming a parameter without memory; kInvalidArgument without a model.
absl::StatusOr<StateParts> PartsOf(const TrainingState& state);

}  // namespace sherd::internal
