#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sherd/runtime/core/device.h"

namespace llm {

// A rank's peak bytes by category, those that it used; each category at its own highest point.
std::vector<std::pair<std::string, int64_t>> PeaksByCategory(const sherd::Device& device);

}  // namespace llm
