#include "preference/loss.h"

#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/indexing.h"
#include "sherd/autograd/ops/reduce.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/softmax.h"

namespace preference {

using sherd::Tensor;
using sherd::Variable;

namespace {

Variable Margin(const Preferences& policy, const Preferences& reference, double beta) {
  const Variable of_policy = Sub(policy.chosen, policy.rejected);
  const Variable of_reference = Sub(reference.chosen, reference.rejected);
  return Scale(Sub(of_policy, of_reference), beta);
}

}  // namespace

Variable SequenceLogProbs(const Variable& logits, const Tensor& labels) {
  std::vector<int64_t> ids = labels.ToHost<int64_t>();
  std::vector<double> counted;
  for (int64_t& id : ids) {
    counted.push_back(id == kIgnored ? 0.0 : 1.0);
    if (id == kIgnored) id = 0;
  }
  const int64_t rows = labels.shape()[0];
  const int64_t tokens = labels.shape()[1];
  const sherd::Device& device = labels.device();
  const Variable index(Tensor::FromHost<int64_t>(device, ids, {rows, tokens, 1}));
  const Variable mask(Tensor::FromHost<double>(device, counted, {rows, tokens}));
  const Variable picked = Reshape(Gather(LogSoftmax(logits), 2, index), {rows, tokens});
  return Sum(Mul(mask, Cast(picked, sherd::DType::kF64)), 1);
}

// -log sigmoid(m) is minus the first of the log-softmax of (m, 0), which does not overflow.
sherd::LossSum DpoLoss(const Preferences& policy, const Preferences& reference, double beta) {
  const Variable margin = Margin(policy, reference, beta);
  const int64_t pairs = margin.value().numel();
  const Variable zeros(Tensor::FromHost<double>(
      margin.value().device(), std::vector<double>(static_cast<size_t>(pairs), 0.0), {pairs}));
  const std::vector<Variable> both = {margin, zeros};
  const Variable log_sigmoid = Slice(LogSoftmax(Stack(both, 1)), 1, 0, 1);
  return {Scale(Sum(log_sigmoid), -1.0), pairs};
}

std::vector<double> Margins(const Preferences& policy, const Preferences& reference, double beta) {
  return Margin(policy, reference, beta).value().ToHost<double>();
}

}  // namespace preference
