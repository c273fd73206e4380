#include "sherd/runtime/kernels/rope.h"

#include "tests/runtime/kernels_support.h"

namespace sherd::kernels::test {
namespace {

void Check(DType dtype, const Shape& shape, int64_t first, bool inverse, Write write, Lay lay,
           bool in_place) {
  const int64_t tokens = shape[1], heads = shape[2], d = shape[3];
  const Values x = RandomValues(dtype, shape, 1);
  const Values before = in_place ? x : RandomValues(dtype, shape, 2);
  std::vector<double> want(x.v.size());
  for (int64_t i = 0; i < shape.numel(); ++i) {
    const int64_t c = i % d, pair = c % (d / 2), t = i / d / heads % tokens;
    const double angle = static_cast<double>(first + t) *
                         std::pow(500.0, -2.0 * static_cast<double>(pair) / static_cast<double>(d));
    const double a = x[i - c + pair], b = x[i - c + pair + d / 2];
    const double sin = inverse ? -std::sin(angle) : std::sin(angle);
    want[static_cast<size_t>(i)] =
        c < d / 2 ? a * std::cos(angle) - b * sin : b * std::cos(angle) + a * sin;
  }
  CheckEverywhere({Written(write, before, want)}, ToleranceOf(dtype), Describe(dtype, write, shape),
                  [&](const Device& device) {
                    const RopeTables tables =
                        MakeRopeTables(device, WideOf(dtype), first + tokens + 2, d, 500.0);
                    const Tensor from = ToTensor(device, x, lay);
                    const Tensor out = in_place ? from : ToTensor(device, before, lay);
                    Rope(from, tables.cos, tables.sin, first, inverse, out, write);
                    return Results{FromTensor(out)};
                  });
}

TEST(RopeTest, RotatesPairsOfChannelsByPosition) {
  for (DType dtype : kFloats) {
    for (Write write : kWrites) {
      for (bool inverse : {false, true}) {
        Check(dtype, {2, 5, 3, 14}, 0, inverse, write, Lay::kContiguous, false);
        Check(dtype, {2, 5, 3, 64}, 3, inverse, write, Lay::kPadded, false);
        Check(dtype, {1, 70, 9, 68}, 1, inverse, write, Lay::kPadded, true);
      }
    }
  }
}

TEST(RopeTest, InverseUndoesTheRotation) {
  const Device device = Device::Cpu();
  const RopeTables tables = MakeRopeTables(device, DType::kF64, 9, 8);
  const Values x = RandomValues(DType::kF64, {2, 9, 3, 8}, 1);
  const Tensor t = ToTensor(device, x);
  Rope(t, tables.cos, tables.sin, 0, false, t);
  Rope(t, tables.cos, tables.sin, 0, true, t);
  ExpectNear(FromTensor(t), x.v, 1e-14, "inverse");
}

TEST(RopeTest, TakesAHeadSliceOfAFusedProjection) {
  const Device device = Device::Cpu();
  const RopeTables tables = MakeRopeTables(device, DType::kF32, 4, 6);
  const Values fused = RandomValues(DType::kF32, {2, 4, 5, 6}, 1);
  const Tensor whole = ToTensor(device, fused), part = whole.Slice(2, 1, 3);
  const Tensor copy = Tensor::Empty(device, DType::kF32, {2, 4, 2, 6});
  Copy(part, copy);
  const Tensor a = Tensor::Empty(device, DType::kF32, {2, 4, 2, 6}),
               b = Tensor::Empty(device, DType::kF32, {2, 4, 2, 6});
  Rope(part, tables.cos, tables.sin, 0, false, a);
  Rope(copy, tables.cos, tables.sin, 0, false, b);
  EXPECT_TRUE(SameBits(FromTensor(a), FromTensor(b)));
  EXPECT_FALSE(SameBits(FromTensor(a), FromTensor(copy)));
}

}  // namespace
}  // namespace sherd::kernels::test
