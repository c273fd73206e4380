#pragma once

#include <cstdint>
#include <string_view>

#include "llm/models/config_reader.h"

namespace llm {

// What two linear layers have between them; see activate.h.
enum class Activation : uint8_t { kGelu, kGeluTanh, kRelu, kSilu };

// The activation that a field names. Errors: noted in the reader, for a name that is not known.
Activation ReadActivation(std::string_view field, std::string_view missing, ConfigReader& reader);

}  // namespace llm
