#include "sherd/shard/optimizer_in_backward.h"

#include <algorithm>
#include <utility>

#include "sherd/runtime/base/error.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/internal/norm_part.h"

namespace sherd {
namespace {

std::unique_ptr<Optimizer> Make(const OptimizerInBackward::Factory& factory,
                                std::vector<Parameter> parameters) {
  if (parameters.empty()) return nullptr;
  std::unique_ptr<Optimizer> optimizer = factory(std::move(parameters));
  if (optimizer == nullptr) {
    ThrowInvalidArgument("the factory returned no optimizer", {.op = "OptimizerInBackward"});
  }
  return optimizer;
}

}  // namespace

OptimizerInBackward::OptimizerInBackward(Module& model, const Factory& factory)
    : parameters_(model.parameters()) {
  std::vector<Parameter> rest = parameters_;
  for (Unit* unit : UnitsOf(model)) {
    std::vector<Parameter> mine;
    for (const Parameter& parameter : parameters_) {
      if (UnitOf(parameter) != unit) continue;
      mine.push_back(parameter);
      rest.erase(std::find(rest.begin(), rest.end(), parameter));
    }
    if (!mine.empty()) units_[unit].optimizer = Make(factory, std::move(mine));
  }
  rest_ = Make(factory, std::move(rest));
}

void OptimizerInBackward::BeginWindow() {
  rate_ = next_rate_;
  for (auto& [unit, part] : units_) part.stepped = false;
}

double OptimizerInBackward::StepUnit(Unit& unit) {
  const auto it = units_.find(&unit);
  if (it == units_.end() || std::exchange(it->second.stepped, true)) return 0.0;
  internal::NormPart squares(NormType::kTwo);
  for (int i = 0; i < unit.parameters() && unit.counts_in_norm(); ++i) {
    squares.Add(unit.HeldGradient(i));
  }
  const double part = squares.Value();
  it->second.optimizer->Step({.learning_rate = rate_});
  unit.DropGradients();
  return part;
}

void OptimizerInBackward::Step(const StepOptions& options) {
  for (auto& [unit, part] : units_) {
    if (std::exchange(part.stepped, true)) continue;
    part.optimizer->Step({.learning_rate = rate_, .grad_scale = options.grad_scale});
  }
  if (rest_ != nullptr) {
    rest_->Step({.learning_rate = rate_, .grad_scale = options.grad_scale});
  }
}

void OptimizerInBackward::VisitState(OptimizerStateVisitor& visitor) {
  for (auto& [unit, part] : units_) part.optimizer->VisitState(visitor);
  if (rest_ != nullptr) rest_->VisitState(visitor);
}

}  // namespace sherd
