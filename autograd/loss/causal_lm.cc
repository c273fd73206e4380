#include "sherd/autograd/loss/causal_lm.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "sherd/autograd/apply.h"
#include "sherd/runtime/kernels/cross_entropy.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd {
namespace {

class CrossEntropyOp final : public Op {
 public:
  explicit CrossEntropyOp(int64_t ignore_index) : ignore_index_(ignore_index) {}
  std::string_view name() const override { return "cross_entropy"; }
  OpKind kind() const override { return OpKind::kLoss; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    const Tensor& logits = in[0];
    const Tensor& labels = in[1];
    const bool integer = labels.dtype() == DType::kI32 || labels.dtype() == DType::kI64;
    if (!IsFloating(logits.dtype()) || !integer || logits.rank() < 1 || !labels.is_contiguous() ||
        labels.numel() != logits.shape().rows()) {
      RefuseOperands("float logits [..., V] need one contiguous i32 or i64 label for each row",
                     "logits", logits, "labels", labels);
    }
    plan.outputs = {{DType::kF64, {1}}};
    plan.inner = {{logits.dtype() == DType::kF64 ? DType::kF64 : DType::kF32, {labels.numel()}}};
    plan.backward_reads_inputs = 0b11;
  }
  void Forward(OpForward& f) const override {
    const kernels::CrossEntropyResult result =
        kernels::CrossEntropy(f.inputs[0], f.inputs[1], ignore_index_, f.inner[0]);
    kernels::Fill(f.outputs[0], result.loss_sum);
  }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0);
    kernels::CrossEntropyBackward(b.input(0), b.input(1), ignore_index_, b.inner(0),
                                  *b.grad().data<double>(), target.tensor, target.write);
  }

 private:
  int64_t ignore_index_;
};

template <typename T>
int64_t CountLabels(const Tensor& labels, int64_t ignore_index) {
  const auto counts = [&](T label) { return label != ignore_index; };
  if (!labels.is_contiguous()) {
    const std::vector<T> copy = labels.ToHost<T>();
    return std::count_if(copy.begin(), copy.end(), counts);
  }
  const T* data = labels.data<T>();
  return std::count_if(data, data + labels.numel(), counts);
}

}  // namespace

int64_t CausalLmLoss::Count(const Tensor& labels) const {
  if (labels.dtype() == DType::kI32) return CountLabels<int32_t>(labels, options_.ignore_index);
  if (labels.dtype() != DType::kI64) RefuseOperand("labels are i32 or i64", "labels", labels);
  return CountLabels<int64_t>(labels, options_.ignore_index);
}

LossSum CausalLmLoss::operator()(const Variable& logits, const Tensor& labels,
                                 CallSite site) const {
  const std::array<Variable, 2> operands = {logits, Variable(labels)};
  auto op = std::make_shared<CrossEntropyOp>(options_.ignore_index);
  return {Apply(std::move(op), operands, site)[0], Count(labels)};
}

}  // namespace sherd
