#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "llm/models/text_model.h"
#include "sherd/autograd/nn/layers.h"

namespace llm {

// Lists of the tensors that layers are in a folder.

// One tensor of that name, of the parameter's shape.
void AppendWhole(const std::string& name, const sherd::Parameter& parameter,
                 std::vector<NamedWeight>& out);

// "NAME.weight" and "NAME.bias".
void AppendNorm(const std::string& name, const sherd::LayerNormLayer& layer,
                std::vector<NamedWeight>& out);

// A linear layer that is several in a folder, (name, rows) each, one after another: "NAME.weight"
// and, if it has biases, "NAME.bias" of each.
void AppendFused(const std::vector<std::pair<std::string, int64_t>>& parts,
                 const sherd::LinearLayer& layer, std::vector<NamedWeight>& out);

// A linear layer of that name; `transposed` where the folder has its weight as [in, out].
void AppendLinear(const std::string& name, const sherd::LinearLayer& layer, bool transposed,
                  std::vector<NamedWeight>& out);

}  // namespace llm
