#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/internal/pieces.h"
#include "sherd/runtime/base/error.h"

namespace sherd::internal {
namespace {

// Whether `b` starts in memory where `a` ends.
bool Adjacent(const Tensor& a, const Tensor& b) {
  return a.storage() == b.storage() && a.dtype() == b.dtype() &&
         a.offset_elems() + a.numel() == b.offset_elems();
}

Tensor Join(const Tensor& a, const Tensor& b) {
  return Tensor::View(a.storage(), a.offset_elems(), a.dtype(), {a.numel() + b.numel()});
}

bool IsRate(double x) { return std::isfinite(x) && x >= 0.0; }

void CheckOptions(const PieceOptions& options) {
  const ErrorContext what{.op = options.op};
  if (!IsRate(options.weight_decay)) {
    ThrowInvalidArgument(absl::StrCat("weight_decay is 0 or more, got ", options.weight_decay),
                         what);
  }
  if (options.state_dtype.has_value() && !IsFloating(*options.state_dtype)) {
    ThrowInvalidArgument(
        absl::StrCat("state is kept in floats, not in ", std::string(NameOf(*options.state_dtype))),
        what);
  }
  for (const ParameterGroup& group : options.groups) {
    const std::string name = absl::StrCat("group '", group.name, "'");
    if (!group.matches) ThrowInvalidArgument(absl::StrCat(name, " has no predicate"), what);
    if (!IsRate(group.lr_scale)) {
      ThrowInvalidArgument(absl::StrCat(name, ": lr_scale is 0 or more, got ", group.lr_scale),
                           what);
    }
    if (group.weight_decay.has_value() && !IsRate(*group.weight_decay)) {
      ThrowInvalidArgument(
          absl::StrCat(name, ": weight_decay is 0 or more, got ", *group.weight_decay), what);
    }
  }
}

std::vector<PieceSettings> Resolve(const std::vector<Parameter>& parameters,
                                   const PieceOptions& options) {
  std::vector<PieceSettings> settings;
  std::vector<bool> taken(options.groups.size(), false);
  for (const Parameter& parameter : parameters) {
    const bool decays = options.decay_rule == DecayRule::kAll || parameter.shape().rank() >= 2;
    PieceSettings& own = settings.emplace_back();
    own.weight_decay = decays ? options.weight_decay : 0.0;
    for (size_t g = 0; g < options.groups.size(); ++g) {
      const ParameterGroup& group = options.groups[g];
      if (!group.matches(parameter)) continue;
      taken[g] = true;
      own.lr_scale = group.lr_scale;
      own.weight_decay = group.weight_decay.value_or(own.weight_decay);
      break;
    }
  }
  for (size_t g = 0; g < taken.size(); ++g) {
    if (taken[g]) continue;
    ThrowInvalidArgument(absl::StrCat("group '", options.groups[g].name,
                                      "' has no parameter: it matches none, or only those that an "
                                      "earlier group has"),
                         {.op = options.op});
  }
  return settings;
}

}  // namespace

OptimizerPieces::OptimizerPieces(std::vector<Parameter> parameters, const PieceOptions& options)
    : parameters_(std::move(parameters)),
      steps_(parameters_.size(), 0),
      slab_of_(parameters_.size(), kNoSlab),
      state_offset_(parameters_.size(), 0),
      states_(options.states),
      state_dtype_(options.state_dtype) {
  SHERD_CHECK(states_.size() <= PieceRun::kMaxStates, "an optimizer keeps too many states");
  if (parameters_.empty()) ThrowInvalidArgument("no parameters were given", {.op = options.op});
  CheckOptions(options);
  settings_ = Resolve(parameters_, options);
}

bool OptimizerPieces::HasSlab(size_t i) const {
  return slab_of_[i] < slabs_.size() && slabs_[slab_of_[i]].of == parameters_[i].local().storage();
}

// The pieces of a storage get their states in the order they lie there, so neighbours stay
// neighbours, and memory that belongs to parameters of others costs none. A parameter that is
// unfrozen later gets a slab of its own.
OptimizerPieces::Slab OptimizerPieces::MakeSlab(const Tensor& local) {
  std::vector<size_t> members;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Tensor& piece = parameters_[i].local();
    if (!parameters_[i].requires_grad() || !piece.defined() || HasSlab(i)) continue;
    if (piece.storage() == local.storage()) members.push_back(i);
  }
  std::stable_sort(members.begin(), members.end(), [&](size_t a, size_t b) {
    return parameters_[a].local().offset_elems() < parameters_[b].local().offset_elems();
  });
  int64_t elems = 0;
  for (size_t i : members) {
    slab_of_[i] = slabs_.size();
    state_offset_[i] = elems;
    elems += parameters_[i].local().numel();
  }
  Slab slab{local.storage(), {}};
  for (size_t s = 0; s < states_.size(); ++s) {
    slab.states[s] = Tensor::Zeros(local.device(), state_dtype_.value_or(local.dtype()), {elems},
                                   MemoryCategory::kOptimizer);
  }
  return slab;
}

const OptimizerPieces::Slab& OptimizerPieces::SlabOf(size_t i, const Tensor& local) {
  if (!HasSlab(i)) slabs_.push_back(MakeSlab(local));
  SHERD_CHECK(HasSlab(i), "the state of a parameter that is not trained");
  return slabs_[slab_of_[i]];
}

Tensor OptimizerPieces::StateOf(size_t i, size_t state) {
  const Tensor& local = parameters_[i].local();
  if (!local.defined()) {
    ThrowFailedPrecondition(absl::StrCat("parameter '", parameters_[i].name(),
                                         "' has no memory yet: initialise or load it first"));
  }
  const Tensor& all = SlabOf(i, local).states[state];
  return Tensor::View(all.storage(), state_offset_[i], all.dtype(), {local.numel()});
}

// Joins `run` to the one before it where memory and step allow.
void OptimizerPieces::Append(PieceRun run) {
  if (!runs_.empty()) {
    PieceRun& last = runs_.back();
    bool joins = last.step == run.step && last.settings == run.settings &&
                 Adjacent(last.param, run.param) && Adjacent(last.grad, run.grad);
    for (size_t s = 0; s < states_.size(); ++s) {
      joins = joins && Adjacent(last.states[s], run.states[s]);
    }
    if (joins) {
      last.param = Join(last.param, run.param);
      last.grad = Join(last.grad, run.grad);
      for (size_t s = 0; s < states_.size(); ++s) {
        last.states[s] = Join(last.states[s], run.states[s]);
      }
      return;
    }
  }
  runs_.push_back(std::move(run));
}

void OptimizerPieces::Step(absl::FunctionRef<void(const PieceRun&)> update) {
  runs_.clear();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (!parameter.requires_grad()) continue;
    const Tensor grad = parameter.local_grad();
    if (!grad.defined()) continue;
    ++steps_[i];
    PieceRun run{parameter.MutableLocal(), grad, {}, steps_[i], settings_[i]};
    if (run.param.numel() == 0) continue;
    for (size_t s = 0; s < states_.size(); ++s) run.states[s] = StateOf(i, s);
    Append(std::move(run));
  }
  for (const PieceRun& run : runs_) update(run);
  runs_.clear();
}

void OptimizerPieces::VisitState(OptimizerStateVisitor& visitor) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].requires_grad()) continue;
    visitor.OnCount(parameters_[i], "step", steps_[i]);
    for (size_t s = 0; s < states_.size(); ++s) {
      visitor.OnTensor(parameters_[i], states_[s], StateOf(i, s));
    }
  }
}

}  // namespace sherd::internal
