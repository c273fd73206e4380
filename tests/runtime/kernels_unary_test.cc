#include "sherd/runtime/kernels/unary.h"

#include <functional>

#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

using F = UnaryFunction;
using Real = std::function<double(double)>;

// A function by libm, its derivative at x, and arguments it is defined for.
struct Case {
  F function;
  const char* name;
  Real value, slope;
  bool positive = false;
};

constexpr double kPi = 3.14159265358979323846;

double Cdf(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }
double Pdf(double x) { return std::exp(-x * x / 2) / std::sqrt(2 * kPi); }
double TanhArgument(double x) { return std::sqrt(2 / kPi) * (x + 0.044715 * x * x * x); }
double GeluTanhSlope(double x) {
  const double t = std::tanh(TanhArgument(x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * std::sqrt(2 / kPi) * (1 + 3 * 0.044715 * x * x);
}
double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

const Case kCases[] = {
    {F::kExp, "exp", [](double x) { return std::exp(x); }, [](double x) { return std::exp(x); }},
    {F::kLog, "log", [](double x) { return std::log(x); }, [](double x) { return 1 / x; }, true},
    {F::kTanh, "tanh", [](double x) { return std::tanh(x); },
     [](double x) { return 1 / (std::cosh(x) * std::cosh(x)); }},
    {F::kSigmoid, "sigmoid", Sigmoid, [](double x) { return Sigmoid(x) * Sigmoid(-x); }},
    {F::kRelu, "relu", [](double x) { return std::max(x, 0.0); },
     [](double x) { return x > 0 ? 1.0 : 0.0; }},
    {F::kSqrt, "sqrt", [](double x) { return std::sqrt(x); },
     [](double x) { return 0.5 / std::sqrt(x); }, true},
    {F::kRsqrt, "rsqrt", [](double x) { return 1 / std::sqrt(x); },
     [](double x) { return -0.5 / (x * std::sqrt(x)); }, true},
    {F::kErf, "erf", [](double x) { return std::erf(x); },
     [](double x) { return 2 / std::sqrt(kPi) * std::exp(-x * x); }},
    {F::kGelu, "gelu", [](double x) { return x * Cdf(x); },
     [](double x) { return Cdf(x) + x * Pdf(x); }},
    {F::kGeluTanh, "gelu_tanh", [](double x) { return x / 2 * (1 + std::tanh(TanhArgument(x))); },
     GeluTanhSlope}};

Values Arguments(const Case& c, DType dtype, const Shape& shape) {
  Values x = RandomValues(dtype, shape, 1, 2.0);
  if (c.positive) {
    for (double& v : x.v) v = Rounded(0.25 + std::abs(v), dtype);
  }
  return x;
}

std::vector<double> Mapped(const Values& x, const Real& f) {
  std::vector<double> r(x.v.size());
  for (size_t i = 0; i < r.size(); ++i) r[i] = f(x.v[i]);
  return r;
}

TEST(UnaryTest, ValuesAgreeWithLibm) {
  for (const Case& c : kCases) {
    for (DType dtype : kFloats) {
      for (const Shape& shape : {Shape{1}, Shape{0, 3}, Shape{7, 33}, Shape{301, 257}}) {
        for (Lay lay : {Lay::kContiguous, Lay::kPadded}) {
          for (bool in_place : {false, true}) {
            const Values x = Arguments(c, dtype, shape);
            CheckEverywhere({Mapped(x, c.value)}, ToleranceOf(dtype),
                            c.name + Describe(dtype, Write::kOverwrite, shape),
                            [&](const Device& device) {
                              const Tensor from = ToTensor(device, x, lay);
                              const Tensor out = in_place ? from : ToTensor(device, Like(x), lay);
                              Unary(c.function, from, out);
                              return Results{FromTensor(out)};
                            });
          }
        }
      }
    }
  }
}

TEST(UnaryTest, GradientsAreTheDerivativeTimesWhatComesIn) {
  const Shape shape = {61, 129};
  for (const Case& c : kCases) {
    for (DType dtype : kFloats) {
      for (Write write : kWrites) {
        const Values x = Arguments(c, dtype, shape), grad = RandomValues(dtype, shape, 2);
        const Values before = RandomValues(dtype, shape, 3);
        std::vector<double> want = Mapped(x, c.slope);
        for (size_t i = 0; i < want.size(); ++i) want[i] *= grad.v[i];
        // Where the value is read, it has been rounded to the dtype before.
        Values saved = x;
        if (SlopeReadsValue(c.function)) {
          saved.v = Mapped(x, [&](double v) { return Rounded(c.value(v), dtype); });
        }
        CheckEverywhere({Written(write, before, want)}, 12 * ToleranceOf(dtype),
                        c.name + Describe(dtype, write, shape), [&](const Device& device) {
                          const Tensor out = ToTensor(device, before, Lay::kPadded);
                          UnaryBackward(c.function, ToTensor(device, grad, Lay::kPadded),
                                        ToTensor(device, saved), out, write);
                          return Results{FromTensor(out)};
                        });
      }
    }
  }
}

struct Extreme {
  F function;
  std::vector<double> x, want;
};

TEST(UnaryTest, ExtremesAreWhatTheHeaderSays) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const Extreme extremes[] = {
      {F::kExp, {-inf, inf, nan, -800.0, 800.0, 0.0}, {0, inf, nan, 0, inf, 1}},
      {F::kLog, {0.0, -1.0, inf, nan, 1.0, -inf}, {-inf, nan, inf, nan, 0, nan}},
      {F::kTanh, {-inf, inf, nan, 0.0, 1e5, -1e5}, {-1, 1, nan, 0, 1, -1}},
      {F::kSigmoid, {-inf, inf, nan, 0.0, 1e4}, {0, 1, nan, 0.5, 1}},
      {F::kRelu, {-inf, inf, nan, 0.0, -2.0}, {0, inf, nan, 0, 0}},
      {F::kSqrt, {0.0, inf, nan, -1.0, 4.0}, {0, inf, nan, nan, 2}},
      {F::kRsqrt, {0.0, inf, nan, -1.0, 4.0}, {inf, 0, nan, nan, 0.5}},
      {F::kErf, {-inf, inf, nan, 0.0, 1e4}, {-1, 1, nan, 0, 1}},
      {F::kGelu, {inf, nan, 0.0, 1e4, -1e4}, {inf, nan, 0, 1e4, 0}},
      {F::kGeluTanh, {inf, nan, 0.0, 1e4, -1e4}, {inf, nan, 0, 1e4, 0}}};
  for (const Extreme& e : extremes) {
    const auto n = static_cast<int64_t>(e.x.size());
    for (DType dtype : {DType::kF32, DType::kF64}) {
      CheckEverywhere({e.want}, 1e-30, "extremes", [&](const Device& device) {
        const Tensor out = Tensor::Empty(device, dtype, {n});
        Unary(e.function, ToTensor(device, {dtype, {n}, e.x}), out);
        return Results{FromTensor(out)};
      });
    }
  }
}

TEST(UnaryTest, SlopesOfLargeArgumentsAreThoseOfTheLimits) {
  const double inf = std::numeric_limits<double>::infinity();
  for (F function : {F::kErf, F::kGelu, F::kGeluTanh}) {
    const double end = function == F::kErf ? 0.0 : 1.0;
    for (DType dtype : {DType::kF32, DType::kF64}) {
      const Values x = {dtype, {6}, {inf, -inf, 1e30, -1e30, 50.0, -50.0}};
      const Values one = {dtype, {6}, std::vector<double>(6, 1.0)};
      CheckEverywhere({{end, 0, end, 0, end, 0}}, 0.0, "slopes", [&](const Device& device) {
        const Tensor out = Tensor::Empty(device, dtype, {6});
        UnaryBackward(function, ToTensor(device, one), ToTensor(device, x), out);
        return Results{FromTensor(out)};
      });
    }
  }
}

TEST(ClampTest, KeepsToTheBoundsAndPassesGradientsInsideAndOnThem) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      // 0.1 is no number of any dtype here: the bound is the one nearest to it.
      const double low = Rounded(0.1, dtype);
      const Values x = {dtype, {2, 4}, {-3.0, low, 0.5, 2.0, 2.5, inf, -inf, nan}};
      const Values grad = RandomValues(dtype, {2, 4}, 1), before = RandomValues(dtype, {2, 4}, 2);
      std::vector<double> passed(8, 0.0);
      for (size_t i = 1; i < 4; ++i) passed[i] = grad.v[i];
      CheckEverywhere({{low, low, 0.5, 2.0, 2.0, 2.0, low, nan}, Written(write, before, passed)},
                      write == Write::kAdd ? ToleranceOf(dtype) : 0.0, "clamp",
                      [&](const Device& device) {
                        const Tensor from = ToTensor(device, x, Lay::kPadded);
                        const Tensor out = ToTensor(device, Like(x));
                        Clamp(from, 0.1, 2.0, out);
                        const Tensor to = ToTensor(device, before, Lay::kPadded);
                        ClampBackward(ToTensor(device, grad), from, 0.1, 2.0, to, write);
                        return Results{FromTensor(out), FromTensor(to)};
                      });
    }
  }
}

TEST(ClampTest, InfiniteBoundsBoundNothing) {
  const double inf = std::numeric_limits<double>::infinity();
  const Values x = {DType::kF32, {3}, {-1e30, 0.0, 1e30}};
  CheckEverywhere({{0, 0, 1e30f}}, 0.0, "clamp", [&](const Device& device) {
    const Tensor out = ToTensor(device, Like(x));
    Clamp(ToTensor(device, x), 0.0, inf, out);
    return Results{FromTensor(out)};
  });
}

}  // namespace
}  // namespace sherd::kernels::test
