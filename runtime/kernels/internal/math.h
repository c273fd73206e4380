#pragma once

#include <cstdint>

// Branch-free scalar functions that compilers turn into vector code.
//
// Written for the CPU loops and for CUDA alike: SHERD_ISA names the namespace that every includer
// gets its own copy in, SHERD_HOST_DEVICE is empty outside CUDA. NaN goes in, NaN comes out. Each
// function comes for float and double.
#ifndef SHERD_HOST_DEVICE
#ifdef __CUDACC__
#define SHERD_HOST_DEVICE __host__ __device__
#else
#define SHERD_HOST_DEVICE
#endif
#endif
#define SHERD_MATH SHERD_HOST_DEVICE static inline __attribute__((always_inline))

namespace sherd::kernels::SHERD_ISA {

// e^x, to 1.5 ulp; 0 below the smallest denormal, infinity above the largest number.
// Method: x = n ln 2 + r with n an integer and |r| <= ln 2 / 2 (Cody and Waite 1980), a polynomial
// in r, and two multiplications by powers of two, since 2^n alone may not be a normal number.
SHERD_MATH float Exp(float x) {
  const float clamped_above = x > 89.0f ? 89.0f : x;
  const float y = clamped_above < -104.0f ? -104.0f : clamped_above;
  const float shifted = y * 1.44269504088896341f + 12582912.0f;  // rounds in the last bits
  const float n = shifted - 12582912.0f;
  const float r = (y - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const int32_t whole = __builtin_bit_cast(int32_t, shifted) - 0x4b400000;
  const int32_t half = whole >> 1;
  const float a = __builtin_bit_cast(float, (half + 127) << 23);
  const float b = __builtin_bit_cast(float, (whole - half + 127) << 23);
  return p * a * b;
}

SHERD_MATH double Exp(double x) {
  const double clamped_above = x > 710.0 ? 710.0 : x;
  const double y = clamped_above < -746.0 ? -746.0 : clamped_above;
  const double shifted = y * 1.4426950408889634074 + 6755399441055744.0;
  const double n = shifted - 6755399441055744.0;
  const double r = (y - n * 6.93147180369123816490e-1) - n * 1.90821492927058770002e-10;
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
  const int64_t whole = __builtin_bit_cast(int64_t, shifted) - 0x4338000000000000;
  // An arithmetic shift by one, spelled for instruction sets without a 64-bit one.
  const int64_t half = static_cast<int64_t>(static_cast<uint64_t>(whole + 4096) >> 1) - 2048;
  const double a = __builtin_bit_cast(double, (half + 1023) << 52);
  const double b = __builtin_bit_cast(double, (whole - half + 1023) << 52);
  return p * a * b;
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
