#include "sherd/autograd/optim/sgd.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/internal/pieces.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/optimizer_step.h"

namespace sherd {
namespace {

void Check(const SgdOptions& options) {
  const ErrorContext what{.op = "Sgd"};
  if (!(options.momentum >= 0.0)) {
    ThrowInvalidArgument(absl::StrCat("momentum is 0 or more, got ", options.momentum), what);
  }
  if (!(options.dampening >= 0.0 && options.dampening <= 1.0)) {
    ThrowInvalidArgument(absl::StrCat("dampening is from 0 to 1, got ", options.dampening), what);
  }
  if (options.nesterov && (options.momentum == 0.0 || options.dampening != 0.0)) {
    ThrowInvalidArgument(absl::StrCat("nesterov needs a momentum and no dampening, got momentum ",
                                      options.momentum, " and dampening ", options.dampening),
                         what);
  }
}

std::vector<std::string> StatesOf(const SgdOptions& options) {
  if (options.momentum == 0.0) return {};
  return {"momentum"};
}

}  // namespace

Sgd::Sgd(std::vector<Parameter> parameters, SgdOptions options)
    : options_(std::move(options)),
      pieces_(std::make_unique<internal::OptimizerPieces>(
          std::move(parameters), internal::PieceOptions{.op = "Sgd",
                                                        .groups = options_.groups,
                                                        .weight_decay = options_.weight_decay,
                                                        .states = StatesOf(options_),
                                                        .state_dtype = options_.moment_dtype})) {
  Check(options_);
}

Sgd::~Sgd() = default;

const std::vector<Parameter>& Sgd::parameters() const { return pieces_->parameters(); }

void Sgd::VisitState(OptimizerStateVisitor& visitor) { pieces_->VisitState(visitor); }

void Sgd::Step(const StepOptions& options) {
  pieces_->Step([&](const internal::PieceRun& run) {
    kernels::SgdCoefficients c;
    c.lr = options.learning_rate * run.settings.lr_scale;
    c.momentum = options_.momentum;
    c.dampening = options_.dampening;
    c.weight_decay = run.settings.weight_decay;
    c.grad_scale = options.grad_scale;
    c.nesterov = options_.nesterov;
    c.first = run.step == 1;
    kernels::SgdStep(run.param, run.grad, run.states[0], c);
  });
}

}  // namespace sherd
