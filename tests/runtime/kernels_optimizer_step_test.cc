#include "sherd/runtime/kernels/optimizer_step.h"

#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

void Check(DType dtype, DType grad_dtype, DType moment_dtype, int64_t n, double tolerance) {
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

TEST(AdamWStepTest, AgreesWithTheFormula) {
  for (int64_t n : {0, 1, 100, 70003}) {
    Check(DType::kF32, DType::kF32, DType::kF32, n, 4e-6);
    Check(DType::kF64, DType::kF64, DType::kF64, n, 2e-14);
    for (DType param : {DType::kBF16, DType::kF16}) {
      for (DType grad : {DType::kF32, param}) {
        for (DType moments : {DType::kF32, param}) {
          Check(param, grad, moments, n, ToleranceOf(param));
        }
      }
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

}  // namespace
}  // namespace sherd::kernels::test
