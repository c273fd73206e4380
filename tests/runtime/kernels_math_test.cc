// The scalar functions of the loops against libm in long double, in units of the last place.
#define SHERD_ISA math_test
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

#include "sherd/runtime/kernels/internal/erf.h"
#include "sherd/runtime/kernels/internal/math.h"

namespace sherd::kernels::test {
namespace {

template <typename C>
struct Range {
  C low, high;
  double most_ulp;
};

// The worst error over evenly spaced points and their mirror images in logarithmic spacing.
template <typename C>
void Check(const char* name, C (*f)(C), long double (*want)(long double), Range<C> range) {
  double worst = 0.0;
  C at = 0;
  const auto look = [&](C x) {
    const long double exact = want(static_cast<long double>(x));
    const C rounded = static_cast<C>(exact);
    const long double ulp =
        std::nextafter(std::abs(rounded), std::numeric_limits<C>::infinity()) - std::abs(rounded);
    const auto error = static_cast<double>(std::abs(static_cast<long double>(f(x)) - exact) / ulp);
    if (!(error <= worst)) {
      worst = error;
      at = x;
    }
  };
  constexpr int kPoints = 300000;
  for (int i = 0; i <= kPoints; ++i) {
    const C x = range.low + (range.high - range.low) * (static_cast<C>(i) / C(kPoints));
    look(x);
    // Small magnitudes, of both signs where the range has them.
    const C small = std::ldexp(C(1) + static_cast<C>(i % 1000) / C(1000), -(i % 30));
    if (small >= range.low && small <= range.high) look(small);
    if (-small >= range.low && -small <= range.high) look(-small);
  }
  std::printf("%-28s f%d worst %.2f ulp at %.9g\n", name, static_cast<int>(8 * sizeof(C)), worst,
              static_cast<double>(at));
  EXPECT_LE(worst, range.most_ulp) << name << " at " << at;
}

#define SHERD_CHECK_ULP(function, want, f32, f64)                                         \
  Check<float>(                                                                           \
      #function, [](float x) { return math_test::function(x); }, want, Range<float> f32); \
  Check<double>(                                                                          \
      #function, [](double x) { return math_test::function(x); }, want, Range<double> f64)

long double GeluOf(long double x) { return x / 2 * std::erfc(-x / std::sqrt(2.0L)); }
long double SigmoidOf(long double x) { return 1 / (1 + std::exp(-x)); }

TEST(MathTest, FunctionsAreRightToTheirLastPlaces) {
  using std::erf, std::erfc, std::exp, std::log, std::tanh;
  SHERD_CHECK_ULP(Exp, exp, (-87.0f, 88.3f, 1.6), (-708.0, 709.4, 1.6));
  SHERD_CHECK_ULP(ExpOfAny, exp, (-103.0f, 88.7f, 1.6), (-744.0, 709.7, 1.6));
  SHERD_CHECK_ULP(Log, log, (1e-45f, 10.0f, 1.0), (1e-300, 10.0, 1.0));
  SHERD_CHECK_ULP(Log, log, (1.0f, 1e38f, 1.0), (1.0, 1e308, 1.0));
  SHERD_CHECK_ULP(Tanh, tanh, (-12.0f, 12.0f, 3.0), (-22.0, 22.0, 3.0));
  SHERD_CHECK_ULP(Erf, erf, (-5.0f, 5.0f, 2.0), (-7.0, 7.0, 2.0));
  SHERD_CHECK_ULP(Erfc, erfc, (-5.0f, 9.0f, 6.0), (-7.0, 26.0, 6.0));
  SHERD_CHECK_ULP(Gelu, GeluOf, (-12.5f, 12.0f, 8.0), (-37.0, 30.0, 8.0));
  SHERD_CHECK_ULP(Sigmoid, SigmoidOf, (-80.0f, 30.0f, 4.0), (-700.0, 40.0, 4.0));
}

}  // namespace
}  // namespace sherd::kernels::test
