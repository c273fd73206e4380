#include "sherd/runtime/kernels/optimizer_step.h"

#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

void CheckAdamW(DType dtype, DType grad_dtype, DType moment_dtype, int64_t n, double tolerance) {
  const AdamWCoefficients c = {.lr = 0.05,
                               .beta1 = 0.8,
                               .beta2 = 0.95,
                               .eps = 1e-3,
                               .weight_decay = 0.1,
                               .bias_correction1 = 0.36,
                               .bias_correction2 = 0.0975,
                               .grad_scale = 0.5};
  const Values param = RandomValues(dtype, {n}, 1), grad = RandomValues(grad_dtype, {n}, 2);
  const Values m = RandomValues(moment_dtype, {n}, 3);
  Values v = RandomValues(moment_dtype, {n}, 4);
  for (double& value : v.v) value = std::abs(value);
  std::vector<double> p1(param.v), m1(m.v), v1(v.v);
  for (size_t i = 0; i < p1.size(); ++i) {
    const double g = c.grad_scale * grad.v[i];
    m1[i] = c.beta1 * m.v[i] + (1 - c.beta1) * g;
    v1[i] = c.beta2 * v.v[i] + (1 - c.beta2) * g * g;
    p1[i] -= c.lr * c.weight_decay * param.v[i];
    p1[i] -= c.lr * (m1[i] / c.bias_correction1) / (std::sqrt(v1[i] / c.bias_correction2) + c.eps);
  }
  CheckEverywhere({p1, m1, v1}, tolerance, Describe(dtype, Write::kOverwrite, {n}),
                  [&](const Device& device) {
                    const Tensor tp = ToTensor(device, param), tm = ToTensor(device, m);
                    const Tensor tv = ToTensor(device, v);
                    AdamWStep(tp, ToTensor(device, grad), tm, tv, c);
                    return Results{FromTensor(tp), FromTensor(tm), FromTensor(tv)};
                  });
}

// The worst rounding of what a step leaves.
double ToleranceOf(std::initializer_list<DType> stored, DType computed) {
  double tolerance = kernels::test::ToleranceOf(computed);
  for (DType dtype : stored) tolerance = std::max(tolerance, kernels::test::ToleranceOf(dtype));
  return tolerance;
}

TEST(AdamWStepTest, AgreesWithTheFormula) {
  for (DType param : kFloats) {
    for (DType grad : kFloats) {
      for (DType moments : kFloats) {
        const double tolerance = ToleranceOf({param, moments}, WideOf(param));
        CheckAdamW(param, grad, moments, 1300, tolerance);
      }
    }
    for (int64_t n : {0, 1, 100, 70003}) {
      CheckAdamW(param, param, param, n, kernels::test::ToleranceOf(param));
    }
  }
}

TEST(AdamWStepTest, MomentsKeepTheirOwnPrecision) {
  const Device device = Device::Cpu();
  const Tensor p = Tensor::Zeros(device, DType::kBF16, {1}),
               g = Tensor::Zeros(device, DType::kBF16, {1});
  const Tensor m = Tensor::Empty(device, DType::kF32, {1}),
               v = Tensor::Zeros(device, DType::kF32, {1});
  Fill(m, 1.0);
  AdamWStep(p, g, m, v, {.beta1 = 0.999});
  EXPECT_EQ(FromTensor(m)[0], static_cast<double>(0.999f));  // 0.99609375 in bf16
}

void CheckSgd(DType dtype, DType grad_dtype, DType moment_dtype, int64_t n, SgdCoefficients c) {
  const Values param = RandomValues(dtype, {n}, 1), grad = RandomValues(grad_dtype, {n}, 2);
  const Values m = RandomValues(moment_dtype, {n}, 3);
  std::vector<double> p1(param.v), m1(m.v);
  for (size_t i = 0; i < p1.size(); ++i) {
    const double g = c.grad_scale * grad.v[i] + c.weight_decay * param.v[i];
    m1[i] = c.first ? g : c.momentum * m.v[i] + (1 - c.dampening) * g;
    const double step = c.momentum == 0.0 ? g : c.nesterov ? g + c.momentum * m1[i] : m1[i];
    p1[i] -= c.lr * step;
  }
  if (c.momentum == 0.0) m1.clear();
  CheckEverywhere(
      {p1, m1}, ToleranceOf({dtype, moment_dtype}, WideOf(dtype)),
      Describe(dtype, Write::kOverwrite, {n}), [&](const Device& device) {
        const Tensor tp = ToTensor(device, param);
        Tensor tm;
        if (c.momentum != 0.0) tm = ToTensor(device, m);
        SgdStep(tp, ToTensor(device, grad), tm, c);
        return Results{FromTensor(tp), tm.defined() ? FromTensor(tm) : std::vector<double>()};
      });
}

TEST(SgdStepTest, AgreesWithTheFormula) {
  const SgdCoefficients plain = {.lr = 0.3, .weight_decay = 0.1, .grad_scale = 0.5};
  SgdCoefficients heavy = plain;
  heavy.momentum = 0.8;
  heavy.dampening = 0.4;
  SgdCoefficients first = heavy;
  first.first = true;
  SgdCoefficients nesterov = plain;
  nesterov.momentum = 0.8;
  nesterov.nesterov = true;
  SgdCoefficients nesterov_first = nesterov;
  nesterov_first.first = true;
  for (const SgdCoefficients& c : {plain, heavy, first, nesterov, nesterov_first}) {
    for (DType param : kFloats) {
      for (int64_t n : {0, 1, 100, 70003}) CheckSgd(param, param, param, n, c);
      for (DType grad : kFloats) {
        for (DType moments : kFloats) CheckSgd(param, grad, moments, 700, c);
      }
    }
  }
}

TEST(MomentumStepTest, AgreesWithTheFormula) {
  for (DType update : {DType::kF32, DType::kF64}) {
    for (DType grad : kFloats) {
      for (DType moment : kFloats) {
        for (bool nesterov : {false, true}) {
          const int64_t n = 1301;
          const Values g = RandomValues(grad, {n}, 1), m = RandomValues(moment, {n}, 2);
          std::vector<double> m1(m.v), u1(m.v);
          for (size_t i = 0; i < m1.size(); ++i) {
            m1[i] = 0.9 * m.v[i] + 0.5 * g.v[i];
            u1[i] = nesterov ? 0.5 * g.v[i] + 0.9 * m1[i] : m1[i];
          }
          CheckEverywhere({u1, m1}, ToleranceOf({moment, grad}, update), "momentum",
                          [&](const Device& device) {
                            const Tensor tm = ToTensor(device, m);
                            const Tensor tu = Tensor::Empty(device, update, {n});
                            MomentumStep(tu, ToTensor(device, g), tm, {0.9, 0.5, nesterov});
                            return Results{FromTensor(tu), FromTensor(tm)};
                          });
        }
      }
    }
  }
}

TEST(UpdatesTest, NarrowMomentsAreRoundedToNearestEven) {
  const Device device = Device::Cpu();
  // 1 + 2^-8 lies halfway between two neighbours of bf16 and goes to the even one, 1; 1 + 3 * 2^-8
  // lies halfway too and goes up to 1 + 2^-6.
  const Values g = {DType::kF32, {2}, {1.0 + 0x1p-8, 1.0 + 3 * 0x1p-8}};
  const Tensor p = Tensor::Zeros(device, DType::kF32, {2});
  const Tensor m = Tensor::Zeros(device, DType::kBF16, {2});
  SgdStep(p, ToTensor(device, g), m, {.lr = 1.0, .momentum = 0.5, .first = true});
  EXPECT_EQ(FromTensor(m), (std::vector<double>{1.0, 1.0 + 0x1p-6}));
  // The step was taken with the momentum before it was rounded.
  EXPECT_EQ(FromTensor(p), (std::vector<double>{-1.0 - 0x1p-8, -1.0 - 3 * 0x1p-8}));
}

}  // namespace
}  // namespace sherd::kernels::test
