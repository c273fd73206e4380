#include "sherd/autograd/optim/adamw.h"

#include <cmath>
#include <utility>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/optimizer_step.h"

namespace sherd {
namespace {

// Whether `b` starts in memory where `a` ends.
bool Adjacent(const Tensor& a, const Tensor& b) {
  return a.storage() == b.storage() && a.offset_elems() + a.numel() == b.offset_elems();
}

Tensor Join(const Tensor& a, const Tensor& b) {
  return Tensor::View(a.storage(), a.offset_elems(), a.dtype(), {a.numel() + b.numel()});
}

}  // namespace

AdamW::AdamW(std::vector<Parameter> parameters, AdamWOptions options)
    : parameters_(std::move(parameters)), options_(options), steps_(parameters_.size(), 0) {
  if (parameters_.empty()) ThrowInvalidArgument("no parameters were given", {.op = "AdamW"});
}

const AdamW::Moments& AdamW::MomentsOf(const Tensor& local) {
  for (const Moments& moments : moments_) {
    if (moments.of == local.storage()) return moments;
  }
  const int64_t elems = local.storage()->bytes() / SizeOf(local.dtype());
  auto zeros = [&] {
    return Tensor::Zeros(local.device(), local.dtype(), {elems}, MemoryCategory::kOptimizer);
  };
  return moments_.emplace_back(Moments{local.storage(), zeros(), zeros()});
}

std::vector<AdamW::Run> AdamW::CollectRuns() {
  std::vector<Run> runs;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    if (!parameter.requires_grad()) continue;
    const Tensor grad = parameter.local_grad();
    if (!grad.defined()) continue;
    ++steps_[i];
    const Tensor local = parameter.MutableLocal();
    if (local.numel() == 0) continue;
    const Moments& moments = MomentsOf(local);
    auto beside = [&](const Tensor& all) {
      return Tensor::View(all.storage(), local.offset_elems(), all.dtype(), {local.numel()});
    };
    Run run{local,
            grad,
            beside(moments.m),
            beside(moments.v),
            steps_[i],
            parameter.shape().rank() >= 2};
    if (!runs.empty()) {
      Run& last = runs.back();
      if (last.step == run.step && last.decays == run.decays && Adjacent(last.param, run.param) &&
          Adjacent(last.grad, run.grad)) {
        last = {Join(last.param, run.param),
                Join(last.grad, run.grad),
                Join(last.m, run.m),
                Join(last.v, run.v),
                run.step,
                run.decays};
        continue;
      }
    }
    runs.push_back(std::move(run));
  }
  return runs;
}

void AdamW::Step(const StepOptions& options) {
  for (const Run& run : CollectRuns()) {
    kernels::AdamWCoefficients c;
    c.lr = options.learning_rate;
    c.beta1 = options_.beta1;
    c.beta2 = options_.beta2;
    c.eps = options_.eps;
    c.weight_decay = run.decays ? options_.weight_decay : 0.0;
    c.bias_correction1 = 1.0 - std::pow(options_.beta1, static_cast<double>(run.step));
    c.bias_correction2 = 1.0 - std::pow(options_.beta2, static_cast<double>(run.step));
    c.grad_scale = options.grad_scale;
    kernels::AdamWStep(run.param, run.grad, run.m, run.v, c);
  }
}

}  // namespace sherd
