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

// The coefficients' polynomial in t, highest power first.
template <typename C, typename... Rest>
SHERD_MATH C Polynomial(C t, C highest, Rest... rest) {
  C p = highest;
  ((p = p * t + rest), ...);
  return p;
}

// 2^n for whole n, made from bits: adding the constant rounds to an integer in the lowest bits,
// and already holds the bias of the exponent. REQUIRES: the result is a normal number, or n the
// power below them, which gives 0.
constexpr float kExponentShift = 12582912.0f + 127.0f;            // 1.5 * 2^23 and the bias
constexpr double kExponentShift64 = 6755399441055744.0 + 1023.0;  // 1.5 * 2^52 and the bias
SHERD_MATH float PowerOfTwo(float n) {
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, n + kExponentShift) << 23);
}
SHERD_MATH double PowerOfTwo(double n) {
  return __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, n + kExponentShift64) << 52);
}

// e^x = (1 + tail) 2^n with n whole and |tail| below 0.42.
// Method: x = n ln 2 + r with |r| <= ln 2 / 2 (Cody and Waite 1980), a polynomial in r.
template <typename C>
struct ExpParts {
  C tail, n;
};

// Of x - less, where `less` is far smaller than x: what x lost when it was rounded.
SHERD_MATH ExpParts<float> SplitExp(float x, float less = 0.0f) {
  const float n = (x * 1.44269504088896341f + kExponentShift) - kExponentShift;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f - less;
  const float p = Polynomial(r, 1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                             4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f);
  return {p * (r * r) + r, n};
}
SHERD_MATH ExpParts<double> SplitExp(double x, double less = 0.0) {
  const double n = (x * 1.4426950408889634074 + kExponentShift64) - kExponentShift64;
  const double r = (x - n * 6.93147180369123816490e-1) - n * 1.90821492927058770002e-10 - less;
  // Taylor: the first term left out is below 4e-18.
  const double p = Polynomial(r, 1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0,
                              1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0, 1.0 / 5040.0,
                              1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5);
  return {p * (r * r) + r, n};
}

// e^(x - less), to 1.5 ulp; 0 where the result would not be a normal number, infinity from
// 1/sqrt(2) of the largest number on.
SHERD_MATH float Exp(float x, float less = 0.0f) {
  const ExpParts<float> e = SplitExp(x, less);
  const float above = x < -87.33654f ? 0.0f : (e.tail + 1.0f) * PowerOfTwo(e.n);
  return x > 88.37626f ? __builtin_inff() : above;
}
SHERD_MATH double Exp(double x, double less = 0.0) {
  const ExpParts<double> e = SplitExp(x, less);
  const double above = x < -708.396418 ? 0.0 : (e.tail + 1.0) * PowerOfTwo(e.n);
  return x > 709.436139 ? __builtin_inf() : above;
}

// a <= x <= b; NaN stays.
template <typename C>
SHERD_MATH C Clamp(C x, C a, C b) {
  const C above = x < a ? a : x;
  return above > b ? b : above;
}

// The integer nearest to x / 2. REQUIRES: |x| < 2^20.
SHERD_MATH float RoundHalf(float x) { return (x * 0.5f + 12582912.0f) - 12582912.0f; }
SHERD_MATH double RoundHalf(double x) {
  return (x * 0.5 + 6755399441055744.0) - 6755399441055744.0;
}

// e^x to 1.5 ulp up to the largest number, to one place of a subnormal below the smallest.
template <typename C>
SHERD_MATH C ExpOfAny(C x) {
  constexpr C kMost = sizeof(C) == 8 ? C(760) : C(110);
  const ExpParts<C> e = SplitExp(Clamp(x, -kMost, kMost));
  const C half = RoundHalf(e.n);
  return (e.tail + C(1)) * PowerOfTwo(half) * PowerOfTwo(e.n - half);
}

// tanh x, to 3 ulp: -e / (2 + e) with e = e^(-2 |x|) - 1, which loses nothing near 0.
template <typename C>
SHERD_MATH C Tanh(C x) {
  constexpr C kMost = sizeof(C) == 8 ? C(20) : C(10);  // 1 from here on
  const C magnitude = Clamp(x < C(0) ? -x : x, C(0), kMost);
  const ExpParts<C> e = SplitExp(C(-2) * magnitude);
  const C power = PowerOfTwo(e.n);
  const C less = e.tail * power + (power - C(1));
  const C y = -less / (C(2) + less);
  return x < C(0) ? -y : y;
}

// log(1 + f) + n ln 2 = n ln 2 + f - (f^2/2 - s (f^2/2 + R)) for s = f / (2 + f), where the log is
// 2 atanh s = 2 s + s R; ln 2 is in two parts, of which n times the first is exact. R is Taylor's
// series, cut where a term is below half an ulp for 1 + f in [sqrt(1/2), sqrt(2)].
SHERD_MATH float LogOf(float f, float n) {
  const float s = f / (2.0f + f), z = s * s, half_square = 0.5f * f * f;
  const float series =
      z * Polynomial(z, 2.0f / 11.0f, 2.0f / 9.0f, 2.0f / 7.0f, 2.0f / 5.0f, 2.0f / 3.0f);
  return n * 0.693359375f -
         ((half_square - (s * (half_square + series) + n * -2.12194440e-4f)) - f);
}
SHERD_MATH double LogOf(double f, double n) {
  const double s = f / (2.0 + f), z = s * s, half_square = 0.5 * f * f;
  const double series =
      z * Polynomial(z, 2.0 / 23.0, 2.0 / 21.0, 2.0 / 19.0, 2.0 / 17.0, 2.0 / 15.0, 2.0 / 13.0,
                     2.0 / 11.0, 2.0 / 9.0, 2.0 / 7.0, 2.0 / 5.0, 2.0 / 3.0);
  return n * 6.93147180369123816490e-1 -
         ((half_square - (s * (half_square + series) + n * 1.90821492927058770002e-10)) - f);
}

// log x to 1 ulp, of subnormals too; NaN below 0, -infinity at 0.
// Method: x = 2^n (1 + f); subnormals are scaled first. Exponents are counted from sqrt(1/2) and
// kept positive by 128 (1024), so that unsigned shifts do.
SHERD_MATH float Log(float x) {
  const bool small = x < 0x1p-126f;
  const uint32_t bits = __builtin_bit_cast(uint32_t, small ? x * 0x1p25f : x);
  const uint32_t exponent = (bits - 0x3f3504f3u + 0x40000000u) >> 23;
  const float f = __builtin_bit_cast(float, bits - ((exponent - 128u) << 23)) - 1.0f;
  const float n = static_cast<float>(static_cast<int32_t>(exponent)) - (small ? 153.0f : 128.0f);
  const float log = LogOf(f, n);
  const float above = x < __builtin_inff() ? log : x;
  const float real = x < 0.0f ? __builtin_nanf("") : above;
  return x == 0.0f ? -__builtin_inff() : real;
}
SHERD_MATH double Log(double x) {
  const bool small = x < 0x1p-1022;
  const uint64_t bits = __builtin_bit_cast(uint64_t, small ? x * 0x1p54 : x);
  const uint64_t exponent = (bits - 0x3fe6a09e667f3bcdu + 0x4000000000000000u) >> 52;
  const double f = __builtin_bit_cast(double, bits - ((exponent - 1024u) << 52)) - 1.0;
  // 2^52 + exponent, from its bits: not every processor converts vectors of 64-bit integers.
  const double shifted = __builtin_bit_cast(double, exponent | 0x4330000000000000u);
  const double n = shifted - (small ? 0x1p52 + 1078.0 : 0x1p52 + 1024.0);
  const double log = LogOf(f, n);
  const double above = x < __builtin_inf() ? log : x;
  const double real = x < 0.0 ? __builtin_nan("") : above;
  return x == 0.0 ? -__builtin_inf() : real;
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
