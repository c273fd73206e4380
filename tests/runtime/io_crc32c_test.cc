#include "sherd/runtime/io/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sherd {
namespace {

uint32_t Of(const std::string& text, uint32_t crc = 0) {
  return Crc32c({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, crc);
}

TEST(Crc32cTest, HasTheValuesOfTheStandard) {
  EXPECT_EQ(Of(""), 0U);
  EXPECT_EQ(Of("123456789"), 0xE3069283U);
  // RFC 3720, appendix B.4: 32 bytes each.
  EXPECT_EQ(Of(std::string(32, '\0')), 0x8A9136AAU);
  EXPECT_EQ(Of(std::string(32, '\xFF')), 0x62A8AB43U);
  std::string up, down;
  for (int i = 0; i < 32; ++i) {
    up.push_back(static_cast<char>(i));
    down.push_back(static_cast<char>(31 - i));
  }
  EXPECT_EQ(Of(up), 0x46DD794EU);
  EXPECT_EQ(Of(down), 0x113FDB5CU);
}

TEST(Crc32cTest, GoesOnFromWhatCameBefore) {
  const std::string text = "the quick brown fox jumps over the lazy dog";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(Of(text.substr(cut), Of(text.substr(0, cut))), Of(text));
  }
}

}  // namespace
}  // namespace sherd
