#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "sherd/runtime/core/tensor.h"

namespace sherd::kernels::internal {

// The elements of an i32 or i64 tensor as i64, all checked against [0, limit); `ignored` becomes
// -1. Errors: kInvalidArgument naming the first element outside, its index and the limit: "[op]
// what 7 at index 3 is outside [0, 5)".
std::vector<int64_t> CheckedIndices(const Tensor& indices, int64_t limit,
                                    std::optional<int64_t> ignored, std::string_view op,
                                    std::string_view what);

}  // namespace sherd::kernels::internal
