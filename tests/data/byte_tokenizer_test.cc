#include "data/byte_tokenizer.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/data/files.h"

namespace data {
namespace {

using Ids = std::vector<int64_t>;

TEST(ByteTokenizerTest, BytesAboveAsciiAreTokensToo) {
  const std::string text = std::string("a\0z\xff", 4);
  EXPECT_EQ(EncodeBytes(text), (Ids{97, 0, 122, 255}));
  EXPECT_EQ(*DecodeBytes(Ids{97, 0, 122, 255}), text);
  EXPECT_EQ(EncodeBytes(""), Ids{});
}

TEST(ByteTokenizerTest, TokensThatAreNoByteAreNamed) {
  const auto above = DecodeBytes(Ids{0, 256});
  ASSERT_FALSE(above.ok());
  EXPECT_PRED2(Contains, std::string(above.status().message()), "token 256 at position 1");
  const auto below = DecodeBytes(Ids{-1});
  ASSERT_FALSE(below.ok());
  EXPECT_PRED2(Contains, std::string(below.status().message()), "token -1 at position 0");
}

TEST(ByteTokenizerTest, TextFilesAreDocumentsToJoin) {
  const auto a = TextFile::Open(WriteFile("a.txt", "ab\xfe"));
  const auto b = TextFile::Open(WriteFile("b.txt", "c"));
  ASSERT_TRUE(a.ok() && b.ok());
  const JoinedDocuments both({&*a, &*b});
  EXPECT_EQ(Ids(both.bounds().begin(), both.bounds().end()), (Ids{0, 3, 4}));
  Ids tokens(3);
  both.Copy(1, tokens);
  EXPECT_EQ(tokens, (Ids{98, 254, 99}));
}

TEST(ByteTokenizerTest, MissingAndEmptyFilesAreNamed) {
  const auto empty = TextFile::Open(WriteFile("empty.txt", ""));
  ASSERT_FALSE(empty.ok());
  EXPECT_PRED2(Contains, std::string(empty.status().message()), "empty.txt is empty");
  const auto missing = TextFile::Open("/nowhere/a.txt");
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_PRED2(Contains, std::string(missing.status().message()), "text file /nowhere/a.txt");
}

}  // namespace
}  // namespace data
