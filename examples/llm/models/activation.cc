#include "llm/models/activation.h"

#include <string>
#include <utility>

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

}  // namespace llm
