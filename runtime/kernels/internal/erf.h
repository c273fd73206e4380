#pragma once

#include "sherd/runtime/kernels/internal/math.h"

// The error function and the normal distribution, as math.h: no branches, for float and double.
//
// Source: the form (1 + 2x) e^(x^2) erfc(x) as a polynomial in t = (x - k) / (x + k), which maps
//   [0, infinity] to [-1, 1], is Shepherd and Laframboise 1981, "Chebyshev approximation of
//   (1 + 2x) exp(x^2) erfc x in 0 <= x < infinity". k is 3 here; the coefficients are those of the
//   Chebyshev interpolation in 64 points, computed with 60 digits, cut after degree 24 (11) and
//   written in powers of t. What was cut is below 1e-17 (5e-9).
namespace sherd::kernels::SHERD_ISA {

// e^(x^2) erfc(x) for x >= 0.
SHERD_MATH float ErfcScaled(float x) {
  const float t = (x - 3.0f) / (x + 3.0f);
  const float p = Polynomial(t, 7.73102422e-5f, -9.25451669e-5f, -7.26453679e-4f, 1.87507912e-3f,
                             2.49911687e-3f, -2.37635764e-2f, 6.83165678e-2f, -1.19275275e-1f,
                             1.29644114e-1f, -4.75621569e-2f, -1.35621069e-1f, 1.25300806f);
  return p / (1.0f + 2.0f * x);
}
SHERD_MATH double ErfcScaled(double x) {
  const double t = (x - 3.0) / (x + 3.0);
  const double p = Polynomial(
      t, 8.3937348586908775e-10, 9.8625335103455876e-10, -8.2175950587114539e-9,
      -1.3312919661038688e-8, 4.1064013667940353e-8, 1.0183620603842737e-7, -1.4047654315428462e-7,
      -6.1660114603987259e-7, 3.5576086684080594e-7, 3.4723709449771682e-6, -7.3082814687836139e-7,
      -2.0100542268525611e-5, 4.9491966499683453e-6, 1.2509934245837291e-4, -1.0515971958448065e-4,
      -7.7983226965433065e-4, 1.8886903449991718e-3, 2.5293918156939695e-3, -2.3770514917171337e-2,
      6.8308027344009904e-2, -1.1927366341538638e-1, 1.2964515870275939e-1, -4.7562294353449197e-2,
      -1.3562110612458116e-1, 1.2530080582697296);
  return p / (1.0 + 2.0 * x);
}

// The upper half of a number's digits, whose square is exact.
SHERD_MATH float UpperDigits(float x) {
  return __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, x) & 0xfffff000u);
}
SHERD_MATH double UpperDigits(double x) {
  return __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, x) & 0xfffffffff8000000u);
}

// e^(-scale x^2) for a scale of 1 or 1/2, as exact as Exp: rounding x^2 alone would cost x^2 ulp.
template <typename C>
SHERD_MATH C ExpOfMinusSquare(C x, C scale) {
  const C upper = UpperDigits(x);
  return Exp(-scale * (upper * upper), scale * ((x - upper) * (x + upper)));
}

// Where e^(-x^2) is 0, with some to spare for e^(-x^2 / 2).
template <typename C>
inline constexpr C kErfEnd = sizeof(C) == 8 ? C(40) : C(16);

// erfc x, to 1e-15 relative (f32: 6 ulp) where the result is a normal number, else 0.
template <typename C>
SHERD_MATH C Erfc(C x) {
  const C magnitude = Clamp(x < C(0) ? -x : x, C(0), kErfEnd<C>);
  const C tail = ExpOfMinusSquare(magnitude, C(1)) * ErfcScaled(magnitude);
  return x < C(0) ? C(2) - tail : tail;
}

// erf x / x - 1 for |x| <= 1, from z = x^2: Taylor's series.
SHERD_MATH float ErfSeries(float z) {
  return Polynomial(z, 1.48071928e-8f, -1.63658447e-7f, 1.64621144e-6f, -1.49256504e-5f,
                    1.2055333e-4f, -8.54832702e-4f, 5.22397763e-3f, -2.68661706e-2f, 1.12837917e-1f,
                    -3.76126389e-1f, 0.128379167f);
}
SHERD_MATH double ErfSeries(double z) {
  return Polynomial(z, -9.0639708428086725e-17, 1.6342614095367152e-15, -2.7835162072109214e-14,
                    4.4632242632864773e-13, -6.7113668551641104e-12, 9.422759064650411e-11,
                    -1.2290555301717927e-9, 1.4807192815879217e-8, -1.6365844691234924e-7,
                    1.6462114365889247e-6, -1.4925650358406251e-5, 1.2055332981789664e-4,
                    -8.5483270234508528e-4, 5.2239776254421878e-3, -2.6866170645131252e-2,
                    1.1283791670955126e-1, -3.7612638903183752e-1, 0.12837916709551257);
}

// erf x, to 2 ulp.
template <typename C>
SHERD_MATH C Erf(C x) {
  const C magnitude = Clamp(x < C(0) ? -x : x, C(0), kErfEnd<C>);
  const C near = magnitude + magnitude * ErfSeries(magnitude * magnitude);
  const C far = C(1) - ExpOfMinusSquare(magnitude, C(1)) * ErfcScaled(magnitude);
  const C y = magnitude < C(1) ? near : far;
  return x < C(0) ? -y : y;
}

// 2 / sqrt(pi) e^(-x^2)
template <typename C>
SHERD_MATH C ErfSlope(C x) {
  const C magnitude = Clamp(x < C(0) ? -x : x, C(0), kErfEnd<C>);
  return C(1.12837916709551257390) * ExpOfMinusSquare(magnitude, C(1));
}

// The standard normal distribution at x: its integral from -infinity and its density.
template <typename C>
struct NormalAt {
  C cdf, pdf;
};
template <typename C>
SHERD_MATH NormalAt<C> Normal(C x) {
  const C magnitude = Clamp(x < C(0) ? -x : x, C(0), kErfEnd<C>);
  const C density = ExpOfMinusSquare(magnitude, C(0.5));
  const C tail = C(0.5) * density * ErfcScaled(magnitude * C(0.70710678118654752440));
  return {x < C(0) ? tail : C(1) - tail, density * C(0.39894228040143267794)};
}

// The Gaussian error linear unit x Phi(x). Source: Hendrycks and Gimpel 2016, "Gaussian Error
// Linear Units (GELUs)"; so are the tanh form and its constants.
template <typename C>
SHERD_MATH C Gelu(C x) {
  return x * Normal(x).cdf;
}
// Phi(x) + x phi(x)
template <typename C>
SHERD_MATH C GeluSlope(C x) {
  const NormalAt<C> at = Normal(x);
  return at.cdf + Clamp(x, -kErfEnd<C>, kErfEnd<C>) * at.pdf;
}

// Its approximation x/2 (1 + tanh u) = x sigmoid(2u) with u = sqrt(2/pi) (x + 0.044715 x^3).
template <typename C>
SHERD_MATH C GeluTanhGate(C x) {
  return Sigmoid(C(1.59576912160573071176) * (x + C(0.044715) * x * x * x));
}
template <typename C>
SHERD_MATH C GeluTanh(C x) {
  return x * GeluTanhGate(x);
}
// s (1 + x (1 - s) 2u') with s = sigmoid(2u); x is 0 or 1 to all digits long before it is cut.
template <typename C>
SHERD_MATH C GeluTanhSlope(C x_any) {
  const C x = Clamp(x_any, C(-40), C(40));
  const C s = GeluTanhGate(x);
  const C slope = C(1.59576912160573071176) * (C(1) + C(3 * 0.044715) * x * x);
  return s * (C(1) + x * (C(1) - s) * slope);
}

}  // namespace sherd::kernels::SHERD_ISA
