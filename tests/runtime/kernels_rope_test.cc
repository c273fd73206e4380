#include "sherd/runtime/kernels/rope.h"

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/rope_scaling.h"
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

// Values against PyTorch are rows of tests/autograd/ops_table_attention_test.cc.
TEST(RopeScalingTest, NoScalingAndAFactorOfOneChangeNothing) {
  const Device device = Device::Cpu();
  const RopeTables plain = MakeRopeTables(device, DType::kF64, 9, 6, 500.0);
  for (RopeScalingType type :
       {RopeScalingType::kNone, RopeScalingType::kLinear, RopeScalingType::kDynamic,
        RopeScalingType::kLlama3, RopeScalingType::kYarn}) {
    const RopeScaling scaling = {.type = type, .original_max_position_embeddings = 32};
    const RopeTables same = MakeRopeTables(device, DType::kF64, 9, 6, 500.0, scaling);
    ExpectNear(FromTensor(same.cos), FromTensor(plain.cos), 1e-15, "cos");
    ExpectNear(FromTensor(same.sin), FromTensor(plain.sin), 1e-15, "sin");
  }
}

TEST(RopeScalingTest, Llama3KeepsFastPairsAndStretchesSlowOnes) {
  // Wavelengths 2 pi theta^(2i/D) against 8192 / 4 and 8192: by hand for Llama 3.1's own numbers.
  const RopeScaling scaling = {
      .type = RopeScalingType::kLlama3, .factor = 8.0, .original_max_position_embeddings = 8192};
  const std::vector<double> f = RopeFrequencies(1, 128, 500000.0, scaling);
  const auto plain = [](int i) { return std::pow(500000.0, -i / 64.0); };
  EXPECT_EQ(f[0], 1.0);
  EXPECT_DOUBLE_EQ(f[28], plain(28));        // wavelength 1956, below 2048
  EXPECT_LT(f[29], plain(29));               // 2402: a little slower
  EXPECT_GT(f[34], plain(34) / 8.0);         // 6695, below 8192
  EXPECT_DOUBLE_EQ(f[35], plain(35) / 8.0);  // 8219, above
}

TEST(RopeScalingTest, YarnScalesScoresByTheLogarithmOfTheFactor) {
  EXPECT_DOUBLE_EQ(RopeAttentionFactor({.type = RopeScalingType::kYarn, .factor = 16.0}),
                   0.1 * std::log(16.0) + 1.0);
  EXPECT_EQ(RopeAttentionFactor(
                {.type = RopeScalingType::kYarn, .factor = 16.0, .attention_factor = 0.5}),
            0.5);
  EXPECT_EQ(RopeAttentionFactor({.type = RopeScalingType::kLinear, .factor = 16.0}), 1.0);
}

TEST(RopeScalingTest, BadOptionsAreNamed) {
  const auto expect = [](const RopeScaling& scaling, int64_t head_size, const std::string& part) {
    try {
      RopeFrequencies(10, head_size, 1e4, scaling);
      ADD_FAILURE() << "no error: " << part;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  };
  using enum RopeScalingType;
  expect({.type = kLinear, .factor = 0.5}, 4, "factor is at least 1, got 0.5");
  expect({.type = kYarn, .factor = 2.0}, 4, "original_max_position_embeddings is at least 1");
  expect({.type = kDynamic, .factor = 2.0, .original_max_position_embeddings = 8}, 2,
         "head size above 2");
  expect({.type = kLlama3,
          .factor = 2.0,
          .original_max_position_embeddings = 8,
          .low_freq_factor = 4.0},
         4, "high_freq_factor is above low_freq_factor");
  expect({.type = kYarn, .factor = 2.0, .original_max_position_embeddings = 8, .beta_fast = 0.5}, 4,
         "beta_fast is at least beta_slow");
}

}  // namespace
}  // namespace sherd::kernels::test
