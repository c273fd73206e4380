#pragma once

#include <cstdint>

namespace emulated {

// Computes one warp's MmaM16N8K16: operands[lane] is the address of that lane's MmaOperands.
void ComputeMma(const uint64_t operands[32]);

}  // namespace emulated
