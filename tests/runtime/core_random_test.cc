#include "sherd/runtime/core/random.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "sherd/runtime/core/dtype.h"

namespace sherd {
namespace {

using Words = std::array<uint32_t, 4>;

// From kat_vectors of the Random123 distribution, "philox4x32 10".
TEST(PhiloxTest, KnownAnswers) {
  EXPECT_EQ(Philox4x32(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox4x32(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// The first outputs of SplitMix64 from the seed 1234567, as in its reference implementation.
TEST(Mix64Test, IsSplitMix64) {
  constexpr uint64_t kGamma = 0x9E3779B97F4A7C15u;
  EXPECT_EQ(Mix64(1234567), 6457827717110365317u);
  EXPECT_EQ(Mix64(1234567 + kGamma), 3203168211198807973u);
  EXPECT_EQ(Mix64(0), 0xE220A8397B1DCDAFu);
}

TEST(Mix64Test, OrderOfFoldedValuesMatters) {
  EXPECT_NE(Mix64(Mix64(7, 1), 2), Mix64(Mix64(7, 2), 1));
  EXPECT_NE(Mix64(7, 1), Mix64(1, 7));
}

// The values of 64-bit FNV-1a in its specification.
TEST(HashNameTest, IsFnv1aMixed) {
  EXPECT_EQ(HashName(""), Mix64(0xCBF29CE484222325u));
  EXPECT_EQ(HashName("a"), Mix64(0xAF63DC4C8601EC8Cu));
  EXPECT_EQ(HashName("foobar"), Mix64(0x85944171F73967E8u));
}

TEST(UniformTest, NeverReachesItsEnds) {
  EXPECT_EQ(UniformOpen(0), 0x1p-33);
  EXPECT_EQ(UniformOpen(~uint32_t{0}), 1.0 - 0x1p-33);
}

TEST(NormalTest, KnownValues) {
  EXPECT_NEAR(Normal(uint32_t{1} << 31, 0), 1.1774100225154747, 1e-8);  // sqrt(2 ln 2)
  EXPECT_NEAR(Normal(uint32_t{1} << 31, uint32_t{1} << 31), -1.1774100225154747, 1e-8);
  EXPECT_NEAR(Normal(0, 0), 6.7637, 1e-4);  // sqrt(66 ln 2), the largest there is
}

TEST(NormalTest, MomentsOfManyDraws) {
  const int n = 20000;
  double sum = 0;
  double squares = 0;
  double fourth = 0;
  for (int i = 0; i < n; ++i) {
    const Words words = Philox4x32(1, static_cast<uint64_t>(i), 0);
    const double x = Normal(words[0], words[1]);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / n, 0.0, 0.03);  // four standard deviations
  EXPECT_NEAR(squares / n, 1.0, 0.04);
  EXPECT_NEAR(fourth / n, 3.0, 0.28);
}

uint16_t RoundedBits(uint32_t float_bits) {
  return BFloat16(std::bit_cast<float>(float_bits)).bits;
}

TEST(BFloat16Test, RoundsToNearestTiesToEven) {
  EXPECT_EQ(RoundedBits(0x3F800000), 0x3F80);  // 1
  EXPECT_EQ(RoundedBits(0x3F808000), 0x3F80);  // a tie, down to even
  EXPECT_EQ(RoundedBits(0x3F808001), 0x3F81);  // above the tie
  EXPECT_EQ(RoundedBits(0x3F817FFF), 0x3F81);  // below the tie
  EXPECT_EQ(RoundedBits(0x3F818000), 0x3F82);  // a tie, up to even
  EXPECT_EQ(RoundedBits(0xBF808000), 0xBF80);
  EXPECT_EQ(RoundedBits(0x80000000), 0x8000);  // -0
  EXPECT_EQ(RoundedBits(0x00008000), 0x0000);  // half of the smallest value
  EXPECT_EQ(RoundedBits(0x00018000), 0x0002);
  EXPECT_EQ(RoundedBits(0x7F7FFFFF), 0x7F80);  // the largest float rounds to infinity
}

TEST(BFloat16Test, KeepsInfinitiesAndNans) {
  EXPECT_EQ(RoundedBits(0x7F800000), 0x7F80);
  EXPECT_EQ(RoundedBits(0xFF800000), 0xFF80);
  // Nans whose upper bits alone would be an infinity, or would carry over into the sign.
  for (uint32_t nan : {0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FC00000u}) {
    EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(nan))))) << nan;
    EXPECT_EQ(RoundedBits(nan) >> 15, nan >> 31);
  }
}

TEST(BFloat16Test, EveryValueSurvivesAFloat) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    BFloat16 value;
    value.bits = static_cast<uint16_t>(bits);
    const float wide = static_cast<float>(value);
    if (std::isnan(wide)) continue;
    ASSERT_EQ(BFloat16(wide).bits, bits);
  }
}

// Halves in order of their bits, from the definition: (-1)^sign 2^(e - 15) (1 + fraction / 1024).
double HalfOf(uint32_t bits) {
  const auto exponent = static_cast<int>(bits >> 10 & 31);
  const double fraction = static_cast<double>(bits & 0x3ff) / 1024;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  return bits & 0x8000 ? -magnitude : magnitude;
}

uint16_t HalfBits(double x) { return Float16(static_cast<float>(x)).bits; }

TEST(Float16Test, EveryFiniteValueIsTheOneOfTheDefinitionAndSurvives) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    if ((bits >> 10 & 31) == 31) continue;
    Float16 value;
    value.bits = static_cast<uint16_t>(bits);
    ASSERT_EQ(static_cast<double>(static_cast<float>(value)), HalfOf(bits)) << bits;
    ASSERT_EQ(Float16(static_cast<float>(value)).bits, bits);
  }
}

TEST(Float16Test, RoundsToNearestTiesToEvenBetweenAllNeighbours) {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const double low = HalfOf(bits), middle = (low + HalfOf(bits + 1)) / 2;
    const uint32_t even = bits + (bits & 1);
    ASSERT_EQ(HalfBits(middle), even) << bits;
    ASSERT_EQ(HalfBits(-middle), even | 0x8000) << bits;
    ASSERT_EQ(Float16(std::nextafterf(static_cast<float>(middle), 0.0f)).bits, bits) << bits;
    ASSERT_EQ(Float16(std::nextafterf(static_cast<float>(middle), 1e6f)).bits, bits + 1) << bits;
  }
}

TEST(Float16Test, OverflowsToInfinityFrom65520AndKeepsInfinitiesAndNans) {
  EXPECT_EQ(HalfBits(65519.99), 0x7bff);
  EXPECT_EQ(HalfBits(65520), 0x7c00);
  EXPECT_EQ(HalfBits(-1e30), 0xfc00);
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(HalfBits(static_cast<double>(-inf)), 0xfc00);
  Float16 half;
  half.bits = 0xfc00;
  EXPECT_EQ(static_cast<float>(half), -inf);
  for (uint32_t nan : {0x7F800001u, 0xFF800001u, 0x7FFFFFFFu, 0xFFFFFFFFu, 0x7FC00000u}) {
    const Float16 value(std::bit_cast<float>(nan));
    EXPECT_TRUE(std::isnan(static_cast<float>(value))) << nan;
    EXPECT_EQ(value.bits >> 15, nan >> 31);
  }
  EXPECT_EQ(Float16(-0.0f).bits, 0x8000);
}

TEST(DTypeTest, SizesAndNames) {
  EXPECT_EQ(SizeOf(DType::kF32), 4);
  EXPECT_EQ(SizeOf(DType::kF64), 8);
  EXPECT_EQ(SizeOf(DType::kBF16), 2);
  EXPECT_EQ(SizeOf(DType::kF16), 2);
  EXPECT_EQ(SizeOf(DType::kI32), 4);
  EXPECT_EQ(SizeOf(DType::kI64), 8);
  EXPECT_EQ(NameOf(DType::kF32), "f32");
  EXPECT_EQ(NameOf(DType::kBF16), "bf16");
  EXPECT_EQ(NameOf(DType::kF16), "f16");
  EXPECT_EQ(NameOf(DType::kI64), "i64");
  EXPECT_EQ(DTypeOf<BFloat16>, DType::kBF16);
  EXPECT_EQ(DTypeOf<int64_t>, DType::kI64);
  EXPECT_EQ(DTypeOf<Float16>, DType::kF16);
  EXPECT_TRUE(IsFloating(DType::kBF16));
  EXPECT_TRUE(IsFloating(DType::kF16));
  EXPECT_FALSE(IsFloating(DType::kI32));
}

}  // namespace
}  // namespace sherd
