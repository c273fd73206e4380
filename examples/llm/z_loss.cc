#include "llm/z_loss.h"

#include <vector>

#include "sherd/autograd/loss/labels.h"
#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/softmax.h"

namespace llm {

using sherd::Variable;

int64_t ZLoss::Count(const sherd::LossLabels& labels) const {
  return sherd::CountTargets(labels.labels, ignored_);
}

sherd::LossSum ZLoss::Compute(const Variable& logits, const sherd::LossLabels& labels,
                              sherd::CallSite site) const {
  // log Z of a row is any of its logits less its log-probability.
  const Variable log_z =
      Sub(Slice(logits, 2, 0, 1, site), Slice(LogSoftmax(logits, site), 2, 0, 1, site), site);
  std::vector<double> counts;
  for (int64_t id : labels.labels.ToHost<int64_t>()) counts.push_back(id != ignored_ ? 1.0 : 0.0);
  const Variable counted(
      sherd::Tensor::FromHost<double>(labels.labels.device(), counts, log_z.value().shape()));
  const Variable wide = Cast(log_z, sherd::DType::kF64, site);
  return {Sum(Mul(counted, Square(wide, site), site), site), Count(labels)};
}

}  // namespace llm
