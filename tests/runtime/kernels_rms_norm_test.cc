#include "sherd/runtime/kernels/rms_norm.h"

#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

constexpr double kEps = 1e-3;

void Check(DType dtype, const Shape& shape, Write write, Lay lay, bool in_place) {
  const int64_t cols = shape.back(), rows = shape.rows();
  const Values x = RandomValues(dtype, shape, 1), weight = RandomValues(dtype, {cols}, 2);
  const Values grad = RandomValues(dtype, shape, 3), before = RandomValues(dtype, shape, 4);
  const Values before_w = RandomValues(WideOf(dtype), {cols}, 5);
  std::vector<double> out(x.v.size()), inv(static_cast<size_t>(rows)), grad_x(x.v.size());
  std::vector<double> grad_w(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    double squares = 0.0, dot = 0.0;
    for (int64_t c = 0; c < cols; ++c) squares += x[r * cols + c] * x[r * cols + c];
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(cols) + kEps);
    inv[static_cast<size_t>(r)] = scale;
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = r * cols + c;
      out[static_cast<size_t>(i)] = x[i] * scale * weight[c];
      grad_w[static_cast<size_t>(c)] += grad[i] * x[i] * scale;
      dot += grad[i] * weight[c] * x[i];
    }
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t i = r * cols + c;
      grad_x[static_cast<size_t>(i)] =
          scale * (grad[i] * weight[c] - x[i] * scale * scale * dot / static_cast<double>(cols));
    }
  }
  // Sums over rows grow; the tolerance is relative to the number of terms.
  const double tolerance =
      ToleranceOf(dtype) * std::max(1.0, std::sqrt(static_cast<double>(rows)) / 4);
  CheckEverywhere(
      {out, inv, Written(write, in_place ? grad : before, grad_x),
       Written(write, before_w, grad_w)},
      tolerance, Describe(dtype, write, shape), [&](const Device& device) {
        const Tensor tx = ToTensor(device, x, lay), tw = ToTensor(device, weight);
        const Tensor to = in_place ? ToTensor(device, x, lay) : ToTensor(device, Like(x), lay);
        const Tensor tinv = Tensor::Empty(device, WideOf(dtype), {rows});
        RmsNorm(in_place ? to : tx, tw, kEps, to, tinv);
        const Tensor tg = ToTensor(device, grad, lay);
        const Tensor tgx = in_place ? tg : ToTensor(device, before, lay);
        const Tensor tgw = ToTensor(device, before_w);
        RmsNormBackward(tg, tx, tw, tinv, tgx, write, tgw, write);
        return Results{FromTensor(to), FromTensor(tinv), FromTensor(tgx), FromTensor(tgw)};
      });
}

TEST(RmsNormTest, AgreesWithPlainLoops) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      for (const Shape& shape : {Shape{1, 1}, Shape{5, 33}, Shape{2, 3, 64}, Shape{1100, 67}}) {
        Check(dtype, shape, write, Lay::kContiguous, false);
        Check(dtype, shape, write, Lay::kPadded, false);
      }
      Check(dtype, {40, 70}, write, Lay::kPadded, true);
    }
  }
}

TEST(RmsNormTest, UndefinedGradientsAreSkipped) {
  const Device device = Device::Cpu();
  const Tensor x = ToTensor(device, RandomValues(DType::kF64, {9, 8}, 1));
  const Tensor w = ToTensor(device, RandomValues(DType::kF64, {8}, 2));
  const Tensor inv = Tensor::Empty(device, DType::kF64, {9}),
               out = Tensor::Empty(device, DType::kF64, {9, 8});
  RmsNorm(x, w, kEps, out, inv);
  const Tensor gx = Tensor::Zeros(device, DType::kF64, {9, 8}),
               gw = Tensor::Zeros(device, DType::kF64, {8});
  RmsNormBackward(x, x, w, inv, gx, Write::kOverwrite, Tensor(), Write::kOverwrite);
  RmsNormBackward(x, x, w, inv, Tensor(), Write::kOverwrite, gw, Write::kOverwrite);
  const Tensor both_x = Tensor::Zeros(device, DType::kF64, {9, 8}),
               both_w = Tensor::Zeros(device, DType::kF64, {8});
  RmsNormBackward(x, x, w, inv, both_x, Write::kOverwrite, both_w, Write::kOverwrite);
  EXPECT_TRUE(SameBits(FromTensor(gx), FromTensor(both_x)));
  EXPECT_TRUE(SameBits(FromTensor(gw), FromTensor(both_w)));
}

TEST(RmsNormTest, NoRowsGiveAZeroGradientOfTheWeight) {
  const Device device = Device::Cpu();
  const Tensor x = Tensor::Empty(device, DType::kF32, {0, 8}),
               w = Tensor::Zeros(device, DType::kF32, {8});
  const Tensor inv = Tensor::Empty(device, DType::kF32, {0}),
               gw = Tensor::Empty(device, DType::kF32, {8});
  Fill(gw, 5.0);
  RmsNormBackward(x, x, w, inv, Tensor(), Write::kOverwrite, gw, Write::kOverwrite);
  EXPECT_EQ(FromTensor(gw), std::vector<double>(8, 0.0));
}

}  // namespace
}  // namespace sherd::kernels::test
