#include "sherd/shard/clip_grad.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/context.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/internal/norm_part.h"

namespace sherd {

int64_t NormSlots(NormType type, int ranks) { return type == NormType::kInf ? ranks : 1; }

void LocalNormPart(const Module& model, NormType type, int rank, std::span<double> slots) {
  LocalNormPart(model, UnitsOf(model), type, rank, slots);
}

void LocalNormPart(const Module& model, std::span<Unit* const> units, NormType type, int rank,
                   std::span<double> slots) {
  std::fill(slots.begin(), slots.end(), 0.0);
  const size_t own = type == NormType::kInf ? static_cast<size_t>(rank) : 0;
  SHERD_CHECK(own < slots.size(), "the parts of a norm have no slot for this rank");
  internal::NormPart part(type);
  for (Unit* unit : units) {
    if (!unit->counts_in_norm()) continue;
    for (int i = 0; i < unit->parameters(); ++i) {
      part.Add(unit->HeldGradient(i));
    }
  }
  // What no unit owns is the same on all ranks.
  if (rank == 0) {
    for (const Parameter& parameter : model.parameters()) {
      if (parameter.state().host == nullptr) part.Add(parameter.local_grad());
    }
  }
  slots[own] = part.Value();
}

double TotalNorm(NormType type, std::span<const double> slots) {
  double total = 0.0;
  for (double slot : slots) {
    if (type != NormType::kInf) {
      total += slot;
    } else if (!std::isnan(total)) {
      total = slot > total || std::isnan(slot) ? slot : total;
    }
  }
  return type == NormType::kTwo ? std::sqrt(total) : total;
}

double ClipCoefficient(double norm, double max_norm) {
  if (!std::isfinite(norm)) return 1.0;
  return std::min(1.0, max_norm / (norm + 1e-6));
}

void ScaleGradients(const Module& model, double factor) {
  const auto scale = [factor](const Tensor& gradient) {
    if (gradient.defined()) kernels::Scale(gradient, factor, gradient);
  };
  for (Unit* unit : UnitsOf(model)) {
    for (int i = 0; i < unit->parameters(); ++i) scale(unit->HeldGradient(i));
  }
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.state().host == nullptr) scale(parameter.local_grad());
  }
}

double ClipGradNorm(Module& model, double max_norm, ClipGradOptions options) {
  if (!(max_norm >= 0.0)) {
    ThrowInvalidArgument(absl::StrCat("max_norm is 0 or more, got ", max_norm),
                         {.op = "ClipGradNorm"});
  }
  const std::shared_ptr<ShardContext> context = ContextOf(model);
  if (context != nullptr) context->CheckUsable();
  for (Unit* unit : UnitsOf(model)) unit->FinishGradients();
  const bool alone = context == nullptr || context->control().size() == 1;
  const int rank = alone ? 0 : context->control().rank();
  const int ranks = alone ? 1 : context->control().size();
  std::vector<double> slots(static_cast<size_t>(NormSlots(options.norm_type, ranks)));
  LocalNormPart(model, options.norm_type, rank, slots);
  if (!alone) {
    context->control().AllReduce(slots.data(), static_cast<int64_t>(slots.size()), DType::kF64,
                                 {.op = "ClipGradNorm"});
  }
  const double norm = TotalNorm(options.norm_type, slots);
  const double coefficient = ClipCoefficient(norm, max_norm);
  if (coefficient != 1.0) ScaleGradients(model, coefficient);
  return norm;
}

}  // namespace sherd
