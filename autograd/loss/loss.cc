#include "sherd/autograd/loss/loss.h"

#include "absl/strings/str_cat.h"
#include "sherd/autograd/apply.h"
#include "sherd/autograd/internal/recorder.h"
#include "sherd/runtime/base/error.h"

namespace sherd {

LossLabels Loss::OnDeviceOf(const Variable& output, const LossLabels& labels) const {
  if (!output.defined()) ThrowInvalidArgument("logits are undefined");
  if (!labels.labels.defined() && !labels.shifted_labels.defined()) {
    ThrowInvalidArgument("labels of the batch are undefined");
  }
  LossLabels moved = labels;
  const auto place = [&](Tensor& x, const std::string& what) {
    if (!x.defined() || x.device() == output.value().device()) return;
    if (labels_device_ == LabelsDevice::kRefuse) {
      RefuseOperands(absl::StrCat("logits on ", output.value().device().id().ToString(), " and ",
                                  what, " on ", x.device().id().ToString(),
                                  ": move them with ToDeviceOf, or set labels_device = kMove"),
                     "logits", output.value(), what, x);
    }
    x = ToDeviceOf(x, output.value());
  };
  place(moved.labels, "labels");
  place(moved.shifted_labels, "shifted_labels");
  place(moved.position_ids, "position_ids");
  place(moved.document_ids, "document_ids");
  place(moved.cu_seqlens, "cu_seqlens");
  for (auto& [name, tensor] : moved.extra) place(tensor, name);
  return moved;
}

LossSum Loss::operator()(const Variable& output, const LossLabels& labels, CallSite site) const {
  try {
    return Compute(output, OnDeviceOf(output, labels), site);
  } catch (const Error& error) {
    throw error.With(
        {.op = std::string(name()), .module_path = internal::CurrentModulePath(), .site = site});
  }
}

}  // namespace sherd
