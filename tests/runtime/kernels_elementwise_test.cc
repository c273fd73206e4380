#include "sherd/runtime/kernels/elementwise.h"

#include <functional>

#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

const Shape kShapes[] = {{1}, {0, 3}, {7, 33}, {3, 2, 5, 19}, {301, 257}};
constexpr Lay kLays[] = {Lay::kContiguous, Lay::kPadded};

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double SiluSlope(double x) { return Sigmoid(x) * (1.0 + x * (1.0 - Sigmoid(x))); }

using Function = std::function<double(double, double)>;
using Kernel = std::function<void(const Tensor&, const Tensor&, const Tensor&, Write)>;

// Checks out (+)= f(a, b) in every dtype, shape and layout, out apart or in place of a.
void CheckBinary(const Kernel& kernel, const Function& f, bool has_add = true) {
  for (DType dtype : kFloats) {
    for (const Shape& shape : kShapes) {
      for (Write write : kWrites) {
        if (write == Write::kAdd && !has_add) continue;
        for (Lay lay : kLays) {
          for (bool in_place : {false, true}) {
            const Values a = RandomValues(dtype, shape, 1, 3.0), b = RandomValues(dtype, shape, 2);
            const Values before = in_place ? a : RandomValues(dtype, shape, 3);
            std::vector<double> r(a.v.size());
            for (size_t i = 0; i < r.size(); ++i) r[i] = f(a.v[i], b.v[i]);
            CheckEverywhere({Written(write, before, r)}, ToleranceOf(dtype),
                            Describe(dtype, write, shape), [&](const Device& device) {
                              const Tensor x = ToTensor(device, a, lay);
                              const Tensor out = in_place ? x : ToTensor(device, before, lay);
                              kernel(x, ToTensor(device, b, lay), out, write);
                              return Results{FromTensor(out)};
                            });
          }
        }
      }
    }
  }
}

TEST(ElementwiseTest, Add) {
  CheckBinary(Add, [](double a, double b) { return a + b; });
}

TEST(ElementwiseTest, Mul) {
  CheckBinary(Mul, [](double a, double b) { return a * b; });
}

TEST(ElementwiseTest, Scale) {
  CheckBinary([](const Tensor& a, const Tensor&, const Tensor& out,
                 Write write) { Scale(a, -1.75, out, write); },
              [](double a, double) { return -1.75 * a; });
}

TEST(ElementwiseTest, Copy) {
  CheckBinary(
      [](const Tensor& a, const Tensor&, const Tensor& out, Write write) { Copy(a, out, write); },
      [](double a, double) { return a; });
}

TEST(ElementwiseTest, Silu) {
  CheckBinary([](const Tensor& a, const Tensor&, const Tensor& out, Write) { Silu(a, out); },
              [](double a, double) { return a * Sigmoid(a); }, false);
}

TEST(ElementwiseTest, SiluBackward) {
  CheckBinary(SiluBackward, [](double grad, double x) { return grad * SiluSlope(x); });
}

TEST(ElementwiseTest, SiluMul) {
  CheckBinary(
      [](const Tensor& a, const Tensor& b, const Tensor& out, Write) { SiluMul(a, b, out); },
      [](double a, double b) { return a * Sigmoid(a) * b; }, false);
}

TEST(ElementwiseTest, SiluMulOnHalvesOfAFusedTensor) {
  for (DType dtype : kFloats) {
    const int64_t n = 37, f = 19;
    const Values fused = RandomValues(dtype, {n, 2 * f}, 1);
    std::vector<double> want(static_cast<size_t>(n * f));
    for (int64_t i = 0; i < n * f; ++i) {
      const double gate = fused[i / f * 2 * f + i % f], up = fused[i / f * 2 * f + f + i % f];
      want[static_cast<size_t>(i)] = gate * Sigmoid(gate) * up;
    }
    CheckEverywhere({want}, ToleranceOf(dtype), "fused", [&](const Device& device) {
      const Tensor x = ToTensor(device, fused), out = Tensor::Empty(device, dtype, {n, f});
      SiluMul(x.Slice(1, 0, f), x.Slice(1, f, 2 * f), out);
      return Results{FromTensor(out)};
    });
  }
}

void CheckSiluMulBackward(DType dtype, Write gate_write, Write up_write, bool in_place,
                          bool has_gate, bool has_up) {
  const Shape shape = {61, 1031};
  const Values grad = RandomValues(dtype, shape, 1), gate = RandomValues(dtype, shape, 2);
  const Values up = RandomValues(dtype, shape, 3), before = RandomValues(dtype, shape, 4);
  std::vector<double> to_gate(gate.v.size()), to_up(gate.v.size());
  for (size_t i = 0; i < to_gate.size(); ++i) {
    to_gate[i] = grad.v[i] * up.v[i] * SiluSlope(gate.v[i]);
    to_up[i] = grad.v[i] * gate.v[i] * Sigmoid(gate.v[i]);
  }
  Results want;
  if (has_gate) want.push_back(Written(gate_write, in_place ? gate : before, to_gate));
  if (has_up) want.push_back(Written(up_write, in_place ? up : before, to_up));
  CheckEverywhere(
      want, ToleranceOf(dtype), Describe(dtype, gate_write, shape), [&](const Device& device) {
        const Tensor x = ToTensor(device, gate, Lay::kPadded);
        const Tensor y = ToTensor(device, up, Lay::kPadded);
        Tensor grad_gate, grad_up;
        if (has_gate) grad_gate = in_place ? x : ToTensor(device, before);
        if (has_up) grad_up = in_place ? y : ToTensor(device, before);
        SiluMulBackward(ToTensor(device, grad), x, y, grad_gate, gate_write, grad_up, up_write);
        Results results;
        if (has_gate) results.push_back(FromTensor(grad_gate));
        if (has_up) results.push_back(FromTensor(grad_up));
        return results;
      });
}

TEST(ElementwiseTest, SiluMulBackward) {
  for (DType dtype : kFloats) {
    for (Write gate : kWrites) {
      for (Write up : kWrites) {
        CheckSiluMulBackward(dtype, gate, up, false, true, true);
        CheckSiluMulBackward(dtype, gate, up, true, true, true);
      }
    }
    CheckSiluMulBackward(dtype, Write::kOverwrite, Write::kOverwrite, false, true, false);
    CheckSiluMulBackward(dtype, Write::kAdd, Write::kAdd, true, false, true);
  }
}

TEST(ElementwiseTest, CastBetweenAllFloats) {
  for (DType from : kFloats) {
    for (DType to : kFloats) {
      for (Write write : kWrites) {
        const Values x = RandomValues(from, {301, 257}, 1),
                     before = RandomValues(to, {301, 257}, 2);
        std::vector<double> want = Written(write, before, x.v);
        for (double& value : want) value = Rounded(value, to);
        // Without a sum the only rounding is the one to the output.
        const double tolerance = write == Write::kOverwrite ? 0.0 : ToleranceOf(to);
        CheckEverywhere({want}, tolerance, Describe(from, write, x.shape),
                        [&](const Device& device) {
                          const Tensor out = ToTensor(device, before, Lay::kPadded);
                          Cast(ToTensor(device, x), out, write);
                          return Results{FromTensor(out)};
                        });
      }
    }
  }
}

TEST(ElementwiseTest, CastToBf16RoundsTiesToEvenAndKeepsNan) {
  const double inf = std::numeric_limits<double>::infinity();
  const Values x = {
      DType::kF32, {7}, {1.00390625, 1.01171875, std::nan(""), inf, -inf, 3.39e38, -0.0}};
  CheckEverywhere({{1.0, 1.015625, std::nan(""), inf, -inf, 3.3895313892515355e38, -0.0}}, 0.0,
                  "ties", [&](const Device& device) {
                    const Tensor out = Tensor::Empty(device, DType::kBF16, {7});
                    Cast(ToTensor(device, x), out);
                    return Results{FromTensor(out)};
                  });
}

TEST(ElementwiseTest, CastToF16RoundsTiesToEvenAndKeepsSubnormalsAndNan) {
  const double inf = std::numeric_limits<double>::infinity();
  const Values x = {DType::kF32,
                    {9},
                    {1.00048828125, 1.00146484375, 65519.0, 65520.0, -inf, 0x1p-25, 0x1.8p-24,
                     std::nan(""), -0x1.ff8p-15}};
  CheckEverywhere(
      {{1.0, 1.001953125, 65504.0, inf, -inf, 0.0, 0x1p-23, std::nan(""), -0x1.ff8p-15}}, 0.0,
      "ties", [&](const Device& device) {
        const Tensor out = Tensor::Empty(device, DType::kF16, {9});
        Cast(ToTensor(device, x), out);
        return Results{FromTensor(out)};
      });
}

// Every half, as the loops of each instruction set read and write them.
TEST(ElementwiseTest, EveryF16SurvivesTheLoops) {
  std::vector<Float16> halves(0x10000);
  for (uint32_t bits = 0; bits < 0x10000; ++bits) halves[bits].bits = static_cast<uint16_t>(bits);
  std::vector<double> want(halves.size());
  for (size_t i = 0; i < want.size(); ++i) want[i] = static_cast<float>(halves[i]);
  CheckEverywhere({want, want}, 0.0, "halves", [&](const Device& device) {
    const Tensor x = Tensor::FromHost<Float16>(device, halves, {0x10000});
    const Tensor wide = Tensor::Empty(device, DType::kF32, {0x10000});
    const Tensor back = Tensor::Empty(device, DType::kF16, {0x10000});
    Cast(x, wide);
    Cast(wide, back);
    return Results{FromTensor(wide), FromTensor(back)};
  });
}

TEST(ElementwiseTest, CopyTakesAnyStrides) {
  const Device device = Device::Cpu({.threads = 3});
  const Values x = RandomValues(DType::kF32, {4, 6, 5}, 1);
  const Tensor whole = ToTensor(device, x);
  const Tensor part = whole.Slice(1, 2, 5).Slice(2, 3, 4);  // [4, 3, 1], nothing adjacent
  const Tensor out = Tensor::Zeros(device, DType::kF32, {4, 3, 1});
  Copy(part, out);
  const std::vector<double> got = FromTensor(out);
  for (int64_t i = 0; i < 12; ++i) {
    EXPECT_EQ(got[static_cast<size_t>(i)], x[i / 3 * 30 + (2 + i % 3) * 5 + 3]);
  }
  Copy(out, part, Write::kAdd);
  EXPECT_EQ(FromTensor(part)[7], 2 * got[7]);
}

TEST(ElementwiseTest, CopyAndFillOfIntegers) {
  const Device device = Device::Cpu();
  const Tensor a = Tensor::Empty(device, DType::kI64, {3, 4}),
               b = Tensor::Empty(device, DType::kI64, {3, 2});
  Fill(a, -7.0);
  Copy(a.Slice(1, 1, 3), b);
  EXPECT_EQ(b.ToHost<int64_t>(), std::vector<int64_t>(6, -7));
  const Tensor c = Tensor::Empty(device, DType::kI32, {5});
  Fill(c, 3.0);
  EXPECT_EQ(c.ToHost<int32_t>(), std::vector<int32_t>(5, 3));
}

TEST(ElementwiseTest, FillReachesEveryElementAndNoOther) {
  for (DType dtype : kFloats) {
    CheckEverywhere({std::vector<double>(301 * 257, 1.5)}, 0.0, "fill", [&](const Device& device) {
      const Tensor out = ToTensor(device, RandomValues(dtype, {301, 257}, 1), Lay::kPadded);
      Fill(out, 1.5);
      return Results{FromTensor(out)};
    });
  }
}

TEST(ElementwiseTest, SiluOfExtremes) {
  const double inf = std::numeric_limits<double>::infinity();
  for (DType dtype : {DType::kF32, DType::kF64}) {
    const Values x = {dtype, {6}, {0.0, 200.0, -200.0, std::nan(""), inf, -90.0}};
    CheckEverywhere({{0.0, 200.0, 0.0, std::nan(""), inf, 0.0}}, 1e-30, "extremes",
                    [&](const Device& device) {
                      const Tensor out = Tensor::Empty(device, dtype, {6});
                      Silu(ToTensor(device, x), out);
                      return Results{FromTensor(out)};
                    });
  }
}

TEST(CopyTest, TransposedViewsAgreeWithPlainLoops) {
  for (DType dtype : kFloats) {
    for (const Shape& shape : {Shape{3, 71, 65}, Shape{2, 1, 300}, Shape{5, 200, 33}}) {
      const Values x = RandomValues(dtype, shape, 1);
      const int64_t a = shape[0], b = shape[1], c = shape[2];
      const Values before = RandomValues(dtype, {c, b, a}, 2);
      std::vector<double> turned(x.v.size());
      for (size_t i = 0; i < turned.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        turned[i] = x[(at % a * b + at / a % b) * c + at / a / b];
      }
      for (Write write : kWrites) {
        for (Lay lay : {Lay::kContiguous, Lay::kPadded}) {
          CheckEverywhere({Written(write, before, turned)}, ToleranceOf(dtype),
                          Describe(dtype, write, shape), [&](const Device& device) {
                            const Tensor out = ToTensor(device, before, lay);
                            Copy(ToTensor(device, x, lay).Transpose(0, 2), out, write);
                            return Results{FromTensor(out)};
                          });
        }
      }
    }
  }
}

TEST(CopyTest, IntoTransposedViews) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      const Values x = RandomValues(dtype, {5, 7}, 1), before = RandomValues(dtype, {7, 5}, 2);
      std::vector<double> want(35);
      for (int64_t i = 0; i < 35; ++i) {
        const double value = x[i % 5 * 7 + i / 5];
        want[static_cast<size_t>(i)] = write == Write::kAdd ? before[i] + value : value;
      }
      CheckEverywhere({want}, ToleranceOf(dtype), Describe(dtype, write, {5, 7}),
                      [&](const Device& device) {
                        const Tensor out = ToTensor(device, before);
                        Copy(ToTensor(device, x), out.Transpose(0, 1), write);
                        return Results{FromTensor(out)};
                      });
    }
  }
}

TEST(CopyTest, TransposedIntegers) {
  const Device device = Device::Cpu();
  std::vector<int64_t> values(40 * 50);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int64_t>(i) << 33;
  const Tensor x = Tensor::FromHost<int64_t>(device, values, {40, 50});
  const Tensor out = Tensor::Empty(device, DType::kI64, {50, 40});
  Copy(x.Transpose(0, 1), out);
  const std::vector<int64_t> turned = out.ToHost<int64_t>();
  for (size_t i = 0; i < turned.size(); ++i) EXPECT_EQ(turned[i], values[i % 40 * 50 + i / 40]);
}

}  // namespace
}  // namespace sherd::kernels::test
