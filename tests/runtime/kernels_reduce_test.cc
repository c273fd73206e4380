#include "sherd/runtime/kernels/reduce.h"

#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

TEST(ReduceTest, AgreesWithPlainLoops) {
  const Shape shapes[] = {{1}, {0}, {}, {37}, {3, 70001}, {5000, 9}};
  for (DType dtype : kFloats) {
    for (const Shape& shape : shapes) {
      for (Lay lay : {Lay::kContiguous, Lay::kPadded}) {
        if (shape.rank() == 0 && lay == Lay::kPadded) continue;
        const Values x = RandomValues(dtype, shape, 1);
        double sum = 0.0, magnitudes = 0.0, squares = 0.0, most = 0.0;
        for (double value : x.v) {
          sum += value;
          magnitudes += std::abs(value);
          squares += value * value;
          most = std::max(most, std::abs(value));
        }
        CheckEverywhere({{sum}, {magnitudes}, {squares}, {most}}, 1e-12,
                        Describe(dtype, Write::kOverwrite, shape), [&](const Device& device) {
                          const Tensor t = ToTensor(device, x, lay);
                          return Results{{Sum(t)}, {SumAbs(t)}, {SumSquares(t)}, {MaxAbs(t)}};
                        });
      }
    }
  }
}

TEST(ReduceTest, NanAndInfinityPropagateFromAnyPlace) {
  const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  for (DType dtype : kFloats) {
    for (int64_t at : {0, 3, 70000, 99999}) {
      Values x = RandomValues(dtype, {100000}, 1);
      x[at] = nan;
      CheckEverywhere({{nan}, {nan}, {nan}, {nan}}, 0.0, "nan", [&](const Device& device) {
        const Tensor t = ToTensor(device, x);
        return Results{{Sum(t)}, {SumAbs(t)}, {SumSquares(t)}, {MaxAbs(t)}};
      });
      x[at] = -inf;
      CheckEverywhere({{-inf}, {inf}, {inf}, {inf}}, 0.0, "inf", [&](const Device& device) {
        const Tensor t = ToTensor(device, x);
        return Results{{Sum(t)}, {SumAbs(t)}, {SumSquares(t)}, {MaxAbs(t)}};
      });
    }
  }
}

TEST(ReduceTest, SquaresOfLargeFloatsDoNotOverflow) {
  const Device device = Device::Cpu();
  const Tensor x = Tensor::Empty(device, DType::kF32, {4});
  Fill(x, 1e30);
  const double value = static_cast<double>(1e30f);
  EXPECT_DOUBLE_EQ(SumSquares(x), 4 * value * value);
}

}  // namespace
}  // namespace sherd::kernels::test
