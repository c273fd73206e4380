#include "llm/models/activation.h"

#include <string>
#include <utility>

#include "sherd/autograd/ops/activation.h"
#include "sherd/autograd/ops/elementwise.h"

namespace llm {

Activation ReadActivation(std::string_view field, std::string_view missing, ConfigReader& reader) {
  constexpr std::pair<const char*, Activation> kNames[] = {
      {"gelu", Activation::kGelu},          {"gelu_python", Activation::kGelu},
      {"gelu_new", Activation::kGeluTanh},  {"gelu_pytorch_tanh", Activation::kGeluTanh},
      {"gelu_fast", Activation::kGeluTanh}, {"relu", Activation::kRelu},
      {"silu", Activation::kSilu},          {"swish", Activation::kSilu}};
  const std::string name = reader.Text(field, std::string(missing));
  for (const auto& [known, activation] : kNames) {
    if (name == known) return activation;
  }
  reader.Refuse(field, "known are gelu, gelu_new, gelu_pytorch_tanh, relu and silu");
  return Activation::kGelu;
}

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
