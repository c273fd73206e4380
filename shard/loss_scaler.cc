#include "sherd/shard/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

constexpr double kLeast = std::numeric_limits<float>::min();
constexpr double kMost = std::numeric_limits<float>::max();

void CheckScale(const char* what, double scale) {
  if (scale >= kLeast && scale <= kMost) return;
  ThrowInvalidArgument(absl::StrCat(what, " is a positive number of f32's range, got ", scale),
                       {.op = "LossScaler"});
}

}  // namespace

LossScaler::LossScaler(LossScalerOptions options) : options_(options) {
  const ErrorContext what{.op = "LossScaler"};
  CheckScale("init_scale", options.init_scale);
  if (!(options.growth_factor > 1.0 && std::isfinite(options.growth_factor))) {
    ThrowInvalidArgument(absl::StrCat("growth_factor is above 1, got ", options.growth_factor),
                         what);
  }
  if (!(options.backoff_factor > 0.0 && options.backoff_factor < 1.0)) {
    ThrowInvalidArgument(
        absl::StrCat("backoff_factor is between 0 and 1, got ", options.backoff_factor), what);
  }
  if (options.growth_interval < 1) {
    ThrowInvalidArgument(
        absl::StrCat("growth_interval is at least 1, got ", options.growth_interval), what);
  }
  state_.scale = options.init_scale;
}

bool LossScaler::FoundInf(std::span<const double> agreed_parts) {
  return !std::all_of(agreed_parts.begin(), agreed_parts.end(),
                      [](double part) { return std::isfinite(part); });
}

void LossScaler::Update(bool found_inf) {
  if (found_inf) {
    state_ = {std::max(state_.scale * options_.backoff_factor, kLeast), 0};
    return;
  }
  if (++state_.good_steps < options_.growth_interval) return;
  const double grown = state_.scale * options_.growth_factor;
  state_ = {grown <= kMost ? grown : state_.scale, 0};
}

void LossScaler::Restore(const LossScalerState& state) {
  CheckScale("a restored scale", state.scale);
  if (state.good_steps < 0) {
    ThrowInvalidArgument(absl::StrCat("good steps are 0 or more, got ", state.good_steps),
                         {.op = "LossScaler"});
  }
  state_ = state;
}

}  // namespace sherd
