#include "sherd/runtime/kernels/softmax.h"

#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

struct Expected {
  std::vector<double> value, grad;
};

// By the definition, row by row. The gradient is taken at the value rounded to `x`'s dtype.
Expected Reference(const Values& x, const Values& grad, bool log) {
  const int64_t cols = x.shape.back(), rows = x.shape.rows();
  Expected r = {x.v, x.v};
  for (int64_t row = 0; row < rows; ++row) {
    const auto at = [&](int64_t c) { return static_cast<size_t>(row * cols + c); };
    double most = x.v[at(0)], sum = 0, dot = 0;
    for (int64_t c = 0; c < cols; ++c) most = std::max(most, x.v[at(c)]);
    for (int64_t c = 0; c < cols; ++c) sum += std::exp(x.v[at(c)] - most);
    for (int64_t c = 0; c < cols; ++c) {
      const double y = x.v[at(c)] - most - std::log(sum);
      r.value[at(c)] = log ? y : std::exp(y);
      dot += grad.v[at(c)] * (log ? 1 : Rounded(r.value[at(c)], x.dtype));
    }
    for (int64_t c = 0; c < cols; ++c) {
      const double y = Rounded(r.value[at(c)], x.dtype);
      r.grad[at(c)] = log ? grad.v[at(c)] - std::exp(y) * dot : y * (grad.v[at(c)] - dot);
    }
  }
  return r;
}

void Check(DType dtype, const Shape& shape, Write write, Lay lay, bool log, bool in_place) {
  const Values x = RandomValues(dtype, shape, 1, 3.0), grad = RandomValues(dtype, shape, 2);
  const Values before = in_place ? grad : RandomValues(dtype, shape, 3);
  const Expected want = Reference(x, grad, log);
  CheckEverywhere({want.value, Written(write, before, want.grad)}, 4 * ToleranceOf(dtype),
                  Describe(dtype, write, shape), [&](const Device& device) {
                    const Tensor from = ToTensor(device, x, lay);
                    const Tensor out = in_place ? from : ToTensor(device, Like(x), lay);
                    log ? LogSoftmax(from, out) : Softmax(from, out);
                    const Tensor g = ToTensor(device, grad, lay);
                    const Tensor to = in_place ? g : ToTensor(device, before, lay);
                    log ? LogSoftmaxBackward(g, out, to, write)
                        : SoftmaxBackward(g, out, to, write);
                    return Results{FromTensor(out), FromTensor(to)};
                  });
}

TEST(SoftmaxTest, AgreesWithPlainLoops) {
  for (DType dtype : kFloats) {
    for (bool log : {false, true}) {
      for (Write write : kWrites) {
        for (const Shape& shape :
             {Shape{1}, Shape{5, 33}, Shape{2, 3, 64}, Shape{700, 101}, Shape{0, 4}}) {
          Check(dtype, shape, write, Lay::kContiguous, log, false);
          Check(dtype, shape, write, Lay::kPadded, log, false);
        }
        Check(dtype, {40, 70}, write, Lay::kPadded, log, true);
      }
    }
  }
}

TEST(SoftmaxTest, RowsOfAnyStridesAreRead) {
  const Device device = Device::Cpu();
  const Values x = RandomValues(DType::kF64, {6, 5}, 1),
               grad = RandomValues(DType::kF64, {6, 5}, 2);
  Values turned = {DType::kF64, {5, 6}, std::vector<double>(30)};
  for (int64_t i = 0; i < 30; ++i) turned[i % 5 * 6 + i / 5] = x[i];
  const Tensor out = ToTensor(device, Like(x));
  Softmax(ToTensor(device, turned).Transpose(0, 1), out);
  ExpectNear(FromTensor(out), Reference(x, grad, false).value, 1e-14, "transposed");
}

TEST(SoftmaxTest, LargeElementsNeitherOverflowNorLoseTheirDifferences) {
  const double most = 1e30;
  const Values x = {DType::kF32, {2, 3}, {most, most, -most, -5e4, -5e4 + 1, -5e4}};
  const double e = std::exp(1.0);
  const std::vector<double> want = {0.5, 0.5, 0, 1 / (2 + e), e / (2 + e), 1 / (2 + e)};
  std::vector<double> logs(6);
  for (size_t i = 0; i < 6; ++i) logs[i] = std::log(want[i]);
  logs[2] = static_cast<float>(-2 * most);
  CheckEverywhere({want, logs}, 1e-6, "large", [&](const Device& device) {
    const Tensor out = ToTensor(device, Like(x)), log = ToTensor(device, Like(x));
    Softmax(ToTensor(device, x), out);
    LogSoftmax(ToTensor(device, x), log);
    return Results{FromTensor(out), FromTensor(log)};
  });
}

TEST(SoftmaxTest, MaskedElementsHaveNoWeightAndARowOfThemIsNan) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  const Values x = {DType::kF64, {4, 2}, {-inf, 3, -inf, -inf, inf, 0, nan, 0}};
  const std::vector<double> want = {0, 1, nan, nan, nan, nan, nan, nan};
  const Values one = {DType::kF64, {1, 2}, {1.0, 2.0}};
  CheckEverywhere(
      {want, {-inf, 0, nan, nan, nan, nan, nan, nan}, {0, 0}, {1, -1}}, 1e-15, "masked",
      [&](const Device& device) {
        const Tensor out = ToTensor(device, Like(x)), log = ToTensor(device, Like(x));
        Softmax(ToTensor(device, x), out);
        LogSoftmax(ToTensor(device, x), log);
        const Tensor grad = ToTensor(device, one), to = ToTensor(device, one);
        const Tensor to_log = ToTensor(device, one);
        SoftmaxBackward(grad, out.Slice(0, 0, 1), to);
        LogSoftmaxBackward(grad, log.Slice(0, 0, 1), to_log);
        return Results{FromTensor(out), FromTensor(log), FromTensor(to), FromTensor(to_log)};
      });
}

}  // namespace
}  // namespace sherd::kernels::test
