#pragma once

#include <string_view>

#include "sherd/autograd/loss/labels.h"
#include "sherd/autograd/loss/loss_sum.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// A loss: how many items a batch has, and the sum over them. Yours is a subclass with options of
// its own; it works wherever ours do, a window included.
//
// The counting rule belongs to the loss and needs labels alone, so a window agrees on the items of
// all ranks before the first forward. A loss never divides: whoever owns scaling does, once.
//
//   class Focal : public Loss {
//    public:
//     struct Options { double gamma = 2.0; LabelsDevice labels_device = LabelsDevice::kRefuse; };
//     explicit Focal(Options options) : Loss(options.labels_device), options_(options) {}
//     std::string_view name() const override { return "focal"; }
//     int64_t Count(const LossLabels& labels) const override { return labels.labels.numel(); }
//    protected:
//     LossSum Compute(const Variable& pooled_logits, const LossLabels& labels,
//                     CallSite site) const override;
//   };
//
// Threads: const members are safe to call from several.
class Loss {
 public:
  virtual ~Loss() = default;
  // For messages: "causal_lm_loss".
  virtual std::string_view name() const = 0;
  // The items of a batch, from its labels alone. Errors: kInvalidArgument as operator() would say.
  virtual int64_t Count(const LossLabels& labels) const = 0;

  // The loss summed over Count(labels) items.
  //
  // Errors: kInvalidArgument naming both operands if labels are on another device than the output
  //   and labels_device is kRefuse; those of Compute, with this loss's name, the module path and
  //   the caller's line.
  LossSum operator()(const Variable& output, const LossLabels& labels,
                     CallSite site = CallSite::Here()) const;

 protected:
  explicit Loss(LabelsDevice labels_device = LabelsDevice::kRefuse)
      : labels_device_(labels_device) {}
  Loss(const Loss&) = default;
  Loss& operator=(const Loss&) = default;

  // What operator() returns, for labels that are on the output's device. `items` of the result has
  // to be what Count says: a window refuses the step otherwise.
  virtual LossSum Compute(const Variable& output, const LossLabels& labels,
                          CallSite site) const = 0;
  // For members that compute in another way: labels on the device of `output`, or the error.
  LossLabels OnDeviceOf(const Variable& output, const LossLabels& labels) const;

 private:
  LabelsDevice labels_device_;
};

}  // namespace sherd
