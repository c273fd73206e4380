#include "llm/models/activate.h"

#include "sherd/autograd/ops/activation.h"
#include "sherd/autograd/ops/elementwise.h"

namespace llm {

sherd::Variable Activate(const sherd::Variable& x, Activation activation) {
  switch (activation) {
    case Activation::kGelu:
      return Gelu(x, sherd::GeluKind::kExact);
    case Activation::kGeluTanh:
      return Gelu(x, sherd::GeluKind::kTanh);
    case Activation::kRelu:
      return Relu(x);
    case Activation::kSilu:
      break;
  }
  return Silu(x);
}

}  // namespace llm
