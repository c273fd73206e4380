#include "llm/models/named_weights.h"

namespace llm {

void AppendWhole(const std::string& name, const sherd::Parameter& parameter,
                 std::vector<NamedWeight>& out) {
  const auto extents = parameter.shape().extents();
  out.push_back({parameter, {{name, {extents.begin(), extents.end()}}}});
}

void AppendNorm(const std::string& name, const sherd::LayerNormLayer& layer,
                std::vector<NamedWeight>& out) {
  AppendWhole(name + ".weight", layer.weight(), out);
  AppendWhole(name + ".bias", layer.bias(), out);
}

void AppendFused(const std::vector<std::pair<std::string, int64_t>>& parts,
                 const sherd::LinearLayer& layer, std::vector<NamedWeight>& out) {
  NamedWeight weight{layer.weight(), {}}, bias{layer.bias(), {}};
  for (const auto& [name, rows] : parts) {
    weight.parts.push_back({name + ".weight", {rows, layer.weight().shape()[1]}});
    bias.parts.push_back({name + ".bias", {rows}});
  }
  out.push_back(std::move(weight));
  if (bias.parameter.defined()) out.push_back(std::move(bias));
}

void AppendLinear(const std::string& name, const sherd::LinearLayer& layer, bool transposed,
                  std::vector<NamedWeight>& out) {
  const int64_t rows = layer.weight().shape()[0], columns = layer.weight().shape()[1];
  const std::vector<int64_t> shape =
      transposed ? std::vector<int64_t>{columns, rows} : std::vector<int64_t>{rows, columns};
  out.push_back({layer.weight(), {{name + ".weight", shape, transposed}}});
  if (layer.bias().defined()) AppendWhole(name + ".bias", layer.bias(), out);
}

}  // namespace llm
