#include "sherd/autograd/optim/adamw.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/internal/pieces.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/optimizer_step.h"

namespace sherd {
namespace {

void Check(const AdamWOptions& options) {
  for (double beta : {options.beta1, options.beta2}) {
    if (beta >= 0.0 && beta < 1.0) continue;
    ThrowInvalidArgument(absl::StrCat("betas are from 0 to less than 1, got ", beta),
                         {.op = "AdamW"});
  }
  if (!(options.eps >= 0.0)) {
    ThrowInvalidArgument(absl::StrCat("eps is 0 or more, got ", options.eps), {.op = "AdamW"});
  }
}

}  // namespace

AdamW::AdamW(std::vector<Parameter> parameters, AdamWOptions options)
    : options_(std::move(options)),
      pieces_(std::make_unique<internal::OptimizerPieces>(
          std::move(parameters), internal::PieceOptions{.op = "AdamW",
                                                        .groups = options_.groups,
                                                        .weight_decay = options_.weight_decay,
                                                        .states = {"m", "v"},
                                                        .state_dtype = options_.moment_dtype})) {
  Check(options_);
}

AdamW::~AdamW() = default;

const std::vector<Parameter>& AdamW::parameters() const { return pieces_->parameters(); }

void AdamW::VisitState(OptimizerStateVisitor& visitor) { pieces_->VisitState(visitor); }

void AdamW::Step(const StepOptions& options) {
  pieces_->Step([&](const internal::PieceRun& run) {
    const double t = static_cast<double>(run.step);
    kernels::AdamWCoefficients c;
    c.lr = options.learning_rate * run.settings.lr_scale;
    c.beta1 = options_.beta1;
    c.beta2 = options_.beta2;
    c.eps = options_.eps;
    c.weight_decay = run.settings.weight_decay;
    c.bias_correction1 = 1.0 - std::pow(options_.beta1, t);
    c.bias_correction2 = 1.0 - std::pow(options_.beta2, t);
    c.grad_scale = options.grad_scale;
    kernels::AdamWStep(run.param, run.grad, run.states[0], run.states[1], c);
  });
}

}  // namespace sherd
