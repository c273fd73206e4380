#include "sherd/shard/window.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/shard/fully_shard.h"

namespace sherd {
namespace {

constexpr char kOp[] = "Accumulation";

bool IsCounted(const LossTerm& term) {
  return term.divide_by == Divisor::kItems || term.divide_by == Divisor::kSamples ||
         term.divide_by == Divisor::kWeights;
}

void CheckTerms(const std::vector<LossTerm>& losses) {
  if (losses.empty()) ThrowInvalidArgument("there are no losses", {.op = kOp});
  for (const LossTerm& term : losses) {
    if (!(term.weight > 0.0) || !std::isfinite(term.weight)) {
      ThrowInvalidArgument(
          absl::StrCat("the weight of loss '", term.name, "' is positive, got ", term.weight),
          {.op = kOp});
    }
    const bool given = term.divide_by == Divisor::kGiven;
    if (given ? !(term.divisor > 0.0) || !std::isfinite(term.divisor) : term.divisor != 0.0) {
      ThrowInvalidArgument(
          absl::StrCat("loss '", term.name, "' has the divisor ", term.divisor,
                       given ? ", which is positive with kGiven" : ", which belongs to kGiven"),
          {.op = kOp});
    }
  }
}

void CheckOptions(const AccumulationOptions& options) {
  if (options.micro_batches < 1) {
    ThrowInvalidArgument(absl::StrCat("micro_batches is at least 1, got ", options.micro_batches),
                         {.op = kOp});
  }
  CheckTerms(options.losses);
  if (options.in_backward == nullptr) return;
  if (options.scaler == nullptr && options.sync != WindowSync::kCaller) return;
  ThrowInvalidArgument(
      absl::StrCat("an optimizer in backward steps before ",
                   options.scaler != nullptr
                       ? "the loss scaler has its verdict"
                       : "a caller of SetGradientSync (kCaller) says that gradients are whole",
                   ": use one of the two"),
      {.op = kOp});
}

void CheckParameters(const Module& model) {
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.state().host != nullptr || !parameter.requires_grad()) continue;
    if (IsIgnored(model, parameter)) continue;
    ThrowInvalidArgument(
        absl::StrCat("parameter '", parameter.name(),
                     "' is in no unit, so its gradient would not be summed over the ranks: "
                     "apply FullyShard to the model itself too"),
        {.op = kOp});
  }
}

}  // namespace

Accumulation::Accumulation(Module& model, AccumulationOptions options, CallSite site) {
  CheckOptions(options);
  std::shared_ptr<ShardContext> context = ContextOf(model);
  if (context != nullptr && context->size() > 1) CheckParameters(model);
  shared_ = std::make_shared<internal::AccumulationState>(
      internal::AccumulationState{.model = model,
                                  .options = std::move(options),
                                  .context = std::move(context),
                                  .units = UnitsOf(model),
                                  .scale = std::make_unique<WindowScale>(model, site)});
}

Divisor Accumulation::CountedDivisor(size_t k) const {
  for (const LossTerm& term : shared_->options.losses) {
    if (IsCounted(term) && k-- == 0) return term.divide_by;
  }
  return Divisor::kItems;
}

void Accumulation::CheckCounts(size_t counts, bool needed) const {
  const std::vector<LossTerm>& losses = shared_->options.losses;
  const auto counted = static_cast<size_t>(std::count_if(losses.begin(), losses.end(), IsCounted));
  const bool reported = std::all_of(losses.begin(), losses.end(), [](const LossTerm& term) {
    return term.divide_by != Divisor::kSamples && term.divide_by != Divisor::kWeights;
  });
  if (counts == counted || (counts == 0 && !needed && reported)) return;
  ThrowInvalidArgument(
      absl::StrCat("got ", counts, " counts; ", counted, " of the ", losses.size(),
                   " losses are divided by items, samples or weights, and need one each"),
      {.op = kOp});
}

void Accumulation::CheckStream() const {
  const AccumulationOptions& options = shared_->options;
  if (options.losses.size() > 1) {
    ThrowInvalidArgument(
        absl::StrCat("a streaming window divides the sums at its end, and those of ",
                     options.losses.size(), " losses cannot be told apart then: use Next"),
        {.op = kOp});
  }
  if (options.in_backward != nullptr) {
    ThrowInvalidArgument(
        "an optimizer in backward steps before a streaming window has divided: use Next",
        {.op = kOp});
  }
}

}  // namespace sherd
