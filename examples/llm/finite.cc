#include "llm/finite.h"

#include <cmath>

#include "absl/strings/str_cat.h"

namespace llm {

absl::Status CheckFinite(const sherd::StepResult& step, const std::string& what_helps) {
  if (std::isfinite(step.loss) && !step.skipped) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat(std::isfinite(step.loss) ? "the gradient norm" : "the loss", " of step ",
                   step.step, " is not finite: training has diverged; ", what_helps, " may help"));
}

}  // namespace llm
