#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace sherd {

// Element types of a Tensor, the floats first. f64 exists on CPU, for proofs. Integers are token
// ids, labels and positions; no op computes gradients for them.
enum class DType : uint8_t { kF32, kF64, kBF16, kF16, kI32, kI64 };

// Bytes of one element.
constexpr int64_t SizeOf(DType dtype) {
  if (dtype == DType::kBF16 || dtype == DType::kF16) return 2;
  return dtype == DType::kF64 || dtype == DType::kI64 ? 8 : 4;
}

// Whether gradients of this type exist; the others hold indices and counts.
constexpr bool IsFloating(DType dtype) { return dtype <= DType::kF16; }

// The float dtype that arithmetic on a float dtype runs in, and that statistics of its rows are
// kept in: f64 for f64, else f32.
constexpr DType ComputeDTypeOf(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

// "f32", "bf16", ...: as messages and files name it.
constexpr std::string_view NameOf(DType dtype) {
  constexpr std::string_view kNames[] = {"f32", "f64", "bf16", "f16", "i32", "i64"};
  return kNames[static_cast<int>(dtype)];
}

// A brain float: the upper half of an f32.
//
// Storage only: arithmetic converts to float, and back once at the end. Conversion from float
// rounds to nearest, ties to even; overflow becomes infinity, NaN stays NaN and keeps its sign.
struct BFloat16 {
  uint16_t bits = 0;  // sign, 8 bits of exponent, 7 of fraction

  // Zero.
  BFloat16() = default;
  // The nearest value. Adding half of the last place, less one for an even one, carries where it
  // must; a NaN keeps its quiet bit so that cutting it does not leave an infinity.
  explicit BFloat16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    bits = is_nan ? static_cast<uint16_t>((u >> 16) | 0x40u)
                  : static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  // Exact.
  explicit operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

// A half float: IEEE 754 binary16. Largest value 65504, smallest normal 2^-14, steps of 2^-24
// below.
//
// Storage only, as BFloat16. Conversion from float rounds to nearest, ties to even, subnormal
// results too; from 65520 on it becomes infinity; NaN stays NaN and keeps its sign.
struct Float16 {
  uint16_t bits = 0;  // sign, 5 bits of exponent, 10 of fraction

  // Zero.
  Float16() = default;
  // The nearest value. A sum with 1/2, whose last place is that of a subnormal half, leaves it to
  // the float unit to round one; else as BFloat16, with the exponent's bias changed by -112.
  explicit Float16(float value) {
    const uint32_t u = std::bit_cast<uint32_t>(value);
    const uint32_t magnitude = u & 0x7fffffffu;
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
    const uint32_t rounded = magnitude < 0x47800000u ? finite : 0x7c00u;
    const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x1ffu);
    bits = static_cast<uint16_t>((u >> 16 & 0x8000u) | (magnitude > 0x7f800000u ? nan : rounded));
  }
  // Exact. A subnormal's fraction is put behind an implied one, which is then taken away.
  explicit operator float() const {
    const uint32_t magnitude = (bits & 0x7fffu) << 13;
    const float subnormal = std::bit_cast<float>(magnitude + 0x38800000u) - 0x1p-14f;
    const uint32_t normal = magnitude + (magnitude < 0x0f800000u ? 0x38000000u : 0x70000000u);
    const uint32_t wide = magnitude < 0x800000u ? std::bit_cast<uint32_t>(subnormal) : normal;
    return std::bit_cast<float>((bits & 0x8000u) << 16 | wide);
  }
};

// The DType of a C++ element type: DTypeOf<float> is kF32. Other types do not compile.
template <typename T>
inline constexpr DType DTypeOf = [] { static_assert(sizeof(T) == 0, "not an element type"); }();
template <>
inline constexpr DType DTypeOf<float> = DType::kF32;
template <>
inline constexpr DType DTypeOf<double> = DType::kF64;
template <>
inline constexpr DType DTypeOf<BFloat16> = DType::kBF16;
template <>
inline constexpr DType DTypeOf<Float16> = DType::kF16;
template <>
inline constexpr DType DTypeOf<int32_t> = DType::kI32;
template <>
inline constexpr DType DTypeOf<int64_t> = DType::kI64;

}  // namespace sherd
