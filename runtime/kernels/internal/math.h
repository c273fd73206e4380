#pragma once

#include <cstdint>

// Branch-free scalar functions that compilers turn into vector code.
//
// Written for the CPU loops and for CUDA alike: SHERD_ISA names the namespace that every includer
// gets its own copy in, SHERD_HOST_DEVICE is empty outside CUDA. NaN goes in, NaN comes out. Each
// function comes for float and double.
#ifndef SHERD_HOST_DEVICE  // CUDA sources define it before they include this
#define SHERD_HOST_DEVICE
#endif
#define SHERD_MATH SHERD_HOST_DEVICE static inline __attribute__((always_inline))

namespace sherd::kernels::SHERD_ISA {

// e^x, to 1.5 ulp; 0 where the result would not be a normal number, infinity from 1/sqrt(2) of the
// largest number on.
// Method: x = n ln 2 + r with n an integer and |r| <= ln 2 / 2 (Cody and Waite 1980), a
//   polynomial in r, and 2^n made from bits: adding the constant rounds to an integer in the
//   lowest bits of `shifted`, and already holds the bias of the exponent.
SHERD_MATH float Exp(float x) {
  constexpr float kShift = 12582912.0f + 127.0f;  // 1.5 * 2^23 and the bias
  const float shifted = x * 1.44269504088896341f + kShift;
  const float n = shifted - kShift;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const float power = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, shifted) << 23);
  const float above = x < -87.33654f ? 0.0f : p * power;
  return x > 88.37626f ? __builtin_inff() : above;
}

SHERD_MATH double Exp(double x) {
  constexpr double kShift = 6755399441055744.0 + 1023.0;  // 1.5 * 2^52 and the bias
  const double shifted = x * 1.4426950408889634074 + kShift;
  const double n = shifted - kShift;
  const double r = (x - n * 6.93147180369123816490e-1) - n * 1.90821492927058770002e-10;
  double p = 1.0 / 6227020800.0;  // Taylor: the first term left out is below 4e-18
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * (r * r) + r + 1.0;
  const double power = __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, shifted) << 52);
  const double above = x < -708.396418 ? 0.0 : p * power;
  return x > 709.436139 ? __builtin_inf() : above;
}

// 1 / (1 + e^-x)
template <typename C>
SHERD_MATH C Sigmoid(C x) {
  return C(1) / (C(1) + Exp(-x));
}

// x sigmoid(x)
template <typename C>
SHERD_MATH C Silu(C x) {
  return x * Sigmoid(x);
}

// d silu(x) / dx = s (1 + x (1 - s)) with s = sigmoid(x)
template <typename C>
SHERD_MATH C SiluSlope(C x) {
  const C s = Sigmoid(x);
  return s * (C(1) + x * (C(1) - s));
}

}  // namespace sherd::kernels::SHERD_ISA
