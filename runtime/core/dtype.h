#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace sherd {

// Element types of a Tensor. f64 exists on CPU, for proofs. Integers are token ids, labels and
// positions; no op computes gradients for them.
enum class DType : uint8_t { kF32, kF64, kBF16, kI32, kI64 };

// Bytes of one element.
constexpr int64_t SizeOf(DType dtype) {
  return dtype == DType::kBF16 ? 2 : (dtype == DType::kF64 || dtype == DType::kI64 ? 8 : 4);
}

// Whether gradients of this type exist; the others hold indices and counts.
constexpr bool IsFloating(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF64 || dtype == DType::kBF16;
}

// "f32", "bf16", ...: as messages and files name it.
constexpr std::string_view NameOf(DType dtype) {
  constexpr std::string_view kNames[] = {"f32", "f64", "bf16", "i32", "i64"};
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
inline constexpr DType DTypeOf<int32_t> = DType::kI32;
template <>
inline constexpr DType DTypeOf<int64_t> = DType::kI64;

}  // namespace sherd
