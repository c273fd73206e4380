#include "mma.h"

#include "emulated/device.h"
#include "number.h"

namespace emulated {

// The fragments, after the PTX ISA: lane = 4 g + t. A register of a or b holds two numbers, the
// lower half first.
//   a[16 x 16]: register r holds row g + 8 (r % 2), columns 2 t + 8 (r / 2) and the next
//   b[16 x 8]:  register r holds rows 2 t + 8 r and the next, column g
//   c, d[16 x 8]: number i is at row g + 8 (i / 2), column 2 t + i % 2
void ComputeMma(const uint64_t operands[32]) {
  float a[16][16];
  float b[16][8];
  const auto of = [&](int lane) -> const MmaOperands& {
    return *reinterpret_cast<const MmaOperands*>(operands[lane]);
  };
  for (int lane = 0; lane < 32; ++lane) {
    const MmaOperands& from = of(lane);
    const int g = lane / 4;
    const int t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      const auto number = [&](uint32_t bits) {
        const auto low = static_cast<uint16_t>(bits >> (16 * half));
        return from.is_bf16 ? FromBf16(low) : FromF16(low);
      };
      for (int r = 0; r < 4; ++r) {
        a[g + 8 * (r % 2)][2 * t + 8 * (r / 2) + half] = number(from.a[r]);
      }
      for (int r = 0; r < 2; ++r) b[2 * t + 8 * r + half][g] = number(from.b[r]);
    }
  }
  // All inputs are read before any output is written: d may be c of the same lane.
  float sums[32][4];
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2);
      const int column = 2 * (lane % 4) + i % 2;
      float sum = of(lane).c[i];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      sums[lane][i] = sum;
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) of(lane).d[i] = sums[lane][i];
  }
}

}  // namespace emulated
