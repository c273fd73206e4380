#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "sherd/runtime/core/dtype.h"

namespace sherd::internal {

// How an element of a dtype is read into a sum and written from one. The bf16 ones spell out the
// bits, so that loops vectorise.
template <typename T>
struct Plain {
  using Element = T;
  using Sum = T;
  static Sum Load(Element x) { return x; }
  static Element Store(Sum x) { return x; }
};

// The f32 on the way from a double to a narrower float: cut off, with the last place saying whether
// anything was. The second rounding then gives what one rounding would have.
inline float RoundToOdd(double x) {
  const float nearest = static_cast<float>(x);
  const auto back = static_cast<double>(nearest);
  const uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (back == x || x != x || (bits & 1u) != 0) return nearest;
  const bool away = (back > x) == (x > 0);
  return std::bit_cast<float>(away ? bits - 1 : bits + 1);
}

struct F32 {
  using Element = float;
  using Sum = float;
  static float Load(float x) { return x; }
  static float Store(float x) { return x; }
  static float Store(double x) { return static_cast<float>(x); }
};

using F64 = Plain<double>;

struct Bf16 {
  using Element = uint16_t;
  using Sum = float;
  static float Load(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  static uint16_t Store(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = u + 0x7FFFu + ((u >> 16) & 1u);
    const uint32_t quiet = u | 0x400000u;
    return static_cast<uint16_t>((x == x ? rounded : quiet) >> 16);
  }
  static uint16_t Store(double x) { return Store(RoundToOdd(x)); }
};

struct F16 {
  using Element = uint16_t;
  using Sum = float;
  static float Load(uint16_t bits) {
    Float16 x;
    x.bits = bits;
    return static_cast<float>(x);
  }
  static uint16_t Store(float x) { return Float16(x).bits; }
  static uint16_t Store(double x) { return Store(RoundToOdd(x)); }
};

// Calls `body` with the kind of a float dtype. REQUIRES: IsFloating(dtype).
template <typename Body>
void WithFloatKind(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF64:
      return body(F64());
    case DType::kBF16:
      return body(Bf16());
    case DType::kF16:
      return body(F16());
    default:
      return body(F32());
  }
}

}  // namespace sherd::internal
