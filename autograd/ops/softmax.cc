#include "sherd/autograd/ops/softmax.h"

#include "sherd/autograd/apply.h"
#include "sherd/runtime/kernels/softmax.h"

namespace sherd {
namespace {

class SoftmaxOp final : public Op {
 public:
  explicit SoftmaxOp(bool log) : log_(log) {}
  std::string_view name() const override { return log_ ? "log_softmax" : "softmax"; }
  void Plan(std::span<const Tensor> in, OpPlan& plan) const override {
    if (!IsFloating(in[0].dtype()) || in[0].rank() < 1) {
      RefuseOperand("a float tensor [..., C] is needed", "x", in[0]);
    }
    plan.outputs = {{in[0].dtype(), in[0].shape()}};
    plan.backward_reads_outputs = 0b1;
  }
  void Forward(OpForward& f) const override {
    (log_ ? kernels::LogSoftmax : kernels::Softmax)(f.inputs[0], f.outputs[0]);
  }
  void Backward(OpBackward& b) const override {
    const GradTarget target = b.target(0);
    (log_ ? kernels::LogSoftmaxBackward : kernels::SoftmaxBackward)(b.grad(), b.output(0),
                                                                    target.tensor, target.write);
  }

 private:
  bool log_;
};

}  // namespace

Variable Softmax(const Variable& x, CallSite site) { return ApplyOne(SoftmaxOp(false), {x}, site); }
Variable LogSoftmax(const Variable& x, CallSite site) {
  return ApplyOne(SoftmaxOp(true), {x}, site);
}

}  // namespace sherd
