#include "sherd/runtime/kernels/layer_norm.h"

#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

constexpr double kEps = 1e-3;

struct Operands {
  Values x, weight, bias, grad;
};

struct Expected {
  std::vector<double> out, mean, inv, grad_x, grad_w, grad_b;
};

Expected Reference(const Operands& o) {
  const int64_t cols = o.x.shape.back(), rows = o.x.shape.rows();
  const auto n = static_cast<double>(cols);
  Expected r;
  r.out.resize(o.x.v.size());
  r.grad_x.resize(o.x.v.size());
  r.grad_w.assign(static_cast<size_t>(cols), 0.0);
  r.grad_b.assign(static_cast<size_t>(cols), 0.0);
  for (int64_t row = 0; row < rows; ++row) {
    double mean = 0, variance = 0, level = 0, along = 0;
    for (int64_t c = 0; c < cols; ++c) mean += o.x[row * cols + c] / n;
    for (int64_t c = 0; c < cols; ++c) {
      variance += (o.x[row * cols + c] - mean) * (o.x[row * cols + c] - mean) / n;
    }
    const double inv = 1 / std::sqrt(variance + kEps);
    r.mean.push_back(mean);
    r.inv.push_back(inv);
    const auto normal = [&](int64_t c) { return (o.x[row * cols + c] - mean) * inv; };
    for (int64_t c = 0; c < cols; ++c) {
      const double grad = o.grad[row * cols + c];
      r.out[static_cast<size_t>(row * cols + c)] = normal(c) * o.weight[c] + o.bias[c];
      r.grad_w[static_cast<size_t>(c)] += grad * normal(c);
      r.grad_b[static_cast<size_t>(c)] += grad;
      level += grad * o.weight[c] / n;
      along += grad * o.weight[c] * normal(c) / n;
    }
    for (int64_t c = 0; c < cols; ++c) {
      r.grad_x[static_cast<size_t>(row * cols + c)] =
          inv * (o.grad[row * cols + c] * o.weight[c] - level - normal(c) * along);
    }
  }
  return r;
}

void Check(DType dtype, const Shape& shape, Write write, Lay lay, bool in_place, bool affine) {
  const int64_t cols = shape.back(), rows = shape.rows();
  Operands o = {RandomValues(dtype, shape, 1), RandomValues(dtype, {cols}, 2),
                RandomValues(dtype, {cols}, 3), RandomValues(dtype, shape, 4)};
  for (double& v : o.x.v) v = Rounded(v + 2.0, dtype);  // a mean that has to be taken away
  if (!affine) {
    o.weight.v.assign(o.weight.v.size(), 1.0);
    o.bias.v.assign(o.bias.v.size(), 0.0);
  }
  const Values before = RandomValues(dtype, shape, 5);
  const Values before_w = RandomValues(WideOf(dtype), {cols}, 6);
  const Expected want = Reference(o);
  const double tolerance =
      4 * ToleranceOf(dtype) * std::max(1.0, std::sqrt(static_cast<double>(rows)) / 4);
  CheckEverywhere(
      {want.out, want.mean, want.inv, Written(write, in_place ? o.grad : before, want.grad_x),
       Written(write, before_w, want.grad_w), Written(write, before_w, want.grad_b)},
      tolerance, Describe(dtype, write, shape), [&](const Device& device) {
        const Tensor x = ToTensor(device, o.x, lay);
        const Tensor w = affine ? ToTensor(device, o.weight) : Tensor();
        const Tensor b = affine ? ToTensor(device, o.bias) : Tensor();
        const Tensor out = ToTensor(device, in_place ? o.x : Like(o.x), lay);
        const Tensor mean = Tensor::Empty(device, WideOf(dtype), {rows});
        const Tensor inv = Tensor::Empty(device, WideOf(dtype), {rows});
        LayerNorm(in_place ? out : x, w, b, kEps, out, mean, inv);
        const Tensor grad = ToTensor(device, o.grad, lay);
        const LayerNormGradients to = {.x = in_place ? grad : ToTensor(device, before, lay),
                                       .write_x = write,
                                       .weight = ToTensor(device, before_w),
                                       .write_weight = write,
                                       .bias = ToTensor(device, before_w),
                                       .write_bias = write};
        LayerNormBackward(grad, x, w, mean, inv, to);
        return Results{FromTensor(out),  FromTensor(mean),      FromTensor(inv),
                       FromTensor(to.x), FromTensor(to.weight), FromTensor(to.bias)};
      });
}

TEST(LayerNormTest, AgreesWithPlainLoops) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      for (const Shape& shape : {Shape{1, 2}, Shape{5, 33}, Shape{2, 3, 64}, Shape{1100, 67}}) {
        Check(dtype, shape, write, Lay::kContiguous, false, true);
        Check(dtype, shape, write, Lay::kPadded, false, true);
      }
      Check(dtype, {40, 70}, write, Lay::kPadded, true, true);
      Check(dtype, {9, 65}, write, Lay::kContiguous, false, false);
    }
  }
}

// In one pass the variance of this row would be lost: its mean is 4000 times its deviation.
TEST(LayerNormTest, AFarMeanCostsNoDigitsOfTheVariance) {
  const Values x = {DType::kF32, {1, 4}, {4095.0, 4097.0, 4095.0, 4097.0}};
  CheckEverywhere({{-1, 1, -1, 1}}, 1e-6, "far", [&](const Device& device) {
    const Tensor out = ToTensor(device, Like(x)), mean = Tensor::Empty(device, DType::kF32, {1});
    LayerNorm(ToTensor(device, x), Tensor(), Tensor(), 0.0, out, mean,
              Tensor::Empty(device, DType::kF32, {1}));
    return Results{FromTensor(out)};
  });
}

TEST(LayerNormTest, WhatIsNotAskedForIsSkippedAndChangesNoBits) {
  const Device device = Device::Cpu();
  const Tensor x = ToTensor(device, RandomValues(DType::kF32, {90, 8}, 1));
  const Tensor grad = ToTensor(device, RandomValues(DType::kF32, {90, 8}, 2));
  const Tensor w = ToTensor(device, RandomValues(DType::kF32, {8}, 3));
  const Tensor mean = Tensor::Empty(device, DType::kF32, {90}),
               out = ToTensor(device, {DType::kF32, {90, 8}, std::vector<double>(720)});
  const Tensor inv = Tensor::Empty(device, DType::kF32, {90});
  LayerNorm(x, w, w, kEps, out, mean, inv);
  const auto run = [&](bool want_x, bool want_w, bool want_b) {
    LayerNormGradients to;
    if (want_x) to.x = Tensor::Zeros(device, DType::kF32, {90, 8});
    if (want_w) to.weight = Tensor::Zeros(device, DType::kF32, {8});
    if (want_b) to.bias = Tensor::Zeros(device, DType::kF32, {8});
    LayerNormBackward(grad, x, w, mean, inv, to);
    Results results;
    for (const Tensor& t : {to.x, to.weight, to.bias}) {
      results.push_back(t.defined() ? FromTensor(t) : std::vector<double>());
    }
    return results;
  };
  const Results all = run(true, true, true);
  EXPECT_EQ(run(true, false, false)[0], all[0]);
  EXPECT_EQ(run(false, true, false)[1], all[1]);
  EXPECT_EQ(run(false, false, true)[2], all[2]);
}

TEST(LayerNormTest, NoRowsGiveZeroGradientsOfWeightAndBias) {
  const Device device = Device::Cpu();
  const Tensor x = Tensor::Empty(device, DType::kF32, {0, 8});
  const Tensor none = Tensor::Empty(device, DType::kF32, {0});
  const LayerNormGradients to = {.weight = Tensor::Empty(device, DType::kF32, {8}),
                                 .bias = Tensor::Empty(device, DType::kF32, {8})};
  Fill(to.weight, 5.0);
  Fill(to.bias, 5.0);
  LayerNormBackward(x, x, Tensor(), none, none, to);
  EXPECT_EQ(FromTensor(to.weight), std::vector<double>(8, 0.0));
  EXPECT_EQ(FromTensor(to.bias), std::vector<double>(8, 0.0));
}

}  // namespace
}  // namespace sherd::kernels::test
