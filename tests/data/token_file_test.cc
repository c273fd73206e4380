#include "data/token_file.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/data/files.h"

namespace data {
namespace {

using Ids = std::vector<int64_t>;

// The bytes of a number, the lowest first.
std::string Bytes(uint64_t value, int width) {
  std::string bytes;
  for (int i = 0; i < width; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

std::string Tokens(const Ids& ids, int width) {
  std::string bytes;
  for (int64_t id : ids) bytes += Bytes(static_cast<uint64_t>(id), width);
  return bytes;
}

std::string LlmC(uint64_t magic, uint64_t version, uint64_t count) {
  std::string header = Bytes(magic, 4) + Bytes(version, 4) + Bytes(count, 4);
  return header + std::string(1024 - header.size(), '\0');
}

std::string Index(int code, const Ids& lengths, const Ids& pointers, const Ids& documents) {
  return std::string("MMIDIDX\0\0", 9) + Bytes(1, 8) + Bytes(static_cast<uint64_t>(code), 1) +
         Bytes(lengths.size(), 8) + Bytes(documents.size(), 8) + Tokens(lengths, 4) +
         Tokens(pointers, 8) + Tokens(documents, 8);
}

Ids All(const TokenFile& file) {
  Ids all(static_cast<size_t>(file.tokens()));
  file.Copy(0, all);
  return all;
}

Ids Bounds(const TokenFile& file) { return {file.bounds().begin(), file.bounds().end()}; }

std::string ErrorOf(const std::string& bytes, TokenFormat format = TokenFormat::kDetect) {
  const auto file = TokenFile::Open(WriteFile("x.bin", bytes), 70000, format);
  return file.ok() ? "no error" : std::string(file.status().message());
}

TEST(TokenFileTest, ReadsRawTokensAndCutsAtTheEndToken) {
  const std::string name = WriteFile("a.bin", Tokens({5, 65535, 0, 5, 7}, 2));
  const auto one = TokenFile::Open(name, 65536);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(All(*one), (Ids{5, 65535, 0, 5, 7}));
  EXPECT_EQ(Bounds(*one), (Ids{0, 5}));
  const auto cut = TokenFile::Open(name, 65536, TokenFormat::kDetect, 0);
  ASSERT_TRUE(cut.ok()) << cut.status();
  EXPECT_EQ(Bounds(*cut), (Ids{0, 3, 5}));
}

TEST(TokenFileTest, ReadsLlmCOfBothWidths) {
  const auto narrow =
      TokenFile::Open(WriteFile("a.bin", LlmC(20240520, 1, 2) + Tokens({1, 50256}, 2)), 50257);
  ASSERT_TRUE(narrow.ok()) << narrow.status();
  EXPECT_EQ(All(*narrow), (Ids{1, 50256}));
  const auto wide =
      TokenFile::Open(WriteFile("b.bin", LlmC(20240801, 7, 2) + Tokens({128000, 2}, 4)), 128256);
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ(All(*wide), (Ids{128000, 2}));
}

TEST(TokenFileTest, ReadsMegatronPairs) {
  const std::string name = WriteFile("a.bin", Tokens({1, 2, 3, 4, 5, 6}, 4));
  WriteFile("a.idx", Index(4, {2, 1, 3}, {0, 8, 12}, {0, 2, 3}));
  const auto file = TokenFile::Open(name, 7);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(All(*file), (Ids{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(Bounds(*file), (Ids{0, 3, 6}));
}

TEST(TokenFileTest, ErrorsNameFilePositionAndValue) {
  EXPECT_PRED2(Contains, ErrorOf(""), "x.bin is empty");
  EXPECT_PRED2(Contains, ErrorOf("abc"), "x.bin has 3 bytes of tokens, no multiple of 2");
  EXPECT_PRED2(Contains, ErrorOf(LlmC(20240520, 2, 1) + "ab"), "magic 20240520 and version 2");
  EXPECT_PRED2(Contains, ErrorOf(LlmC(20240520, 1, 3) + "ab"), "has 1 tokens, its header says 3");
  EXPECT_PRED2(Contains, ErrorOf(LlmC(20240801, 7, 1) + "ab"), "no multiple of 4");
  EXPECT_PRED2(Contains, ErrorOf(LlmC(20240801, 7, 0)), "has no tokens");
  EXPECT_PRED2(Contains, ErrorOf("abcd", TokenFormat::kLlmC), "ends inside the header: 4 bytes");
  EXPECT_PRED2(Contains, ErrorOf(LlmC(20240801, 7, 2) + Tokens({69999, 70000}, 4)),
               "x.bin has token 70000 at position 1, outside [0, 70000)");
}

TEST(TokenFileTest, IndexesThatContradictAreRefused) {
  const std::string bin = Tokens({1, 2, 3}, 4);
  const auto error = [&](const std::string& index) {
    WriteFile("x.idx", index);
    return ErrorOf(bin);
  };
  const std::string good = Index(4, {1, 2}, {0, 4}, {0, 2});
  EXPECT_EQ(error(good), "no error");
  for (size_t size = 1; size < good.size(); ++size) {
    EXPECT_PRED2(Contains, error(good.substr(0, size)), "x.idx") << size;
  }
  EXPECT_PRED2(Contains, error(Index(7, {3}, {0}, {0, 1})), "type code 7");
  EXPECT_PRED2(Contains, error(Index(4, {1, 2}, {0, 8}, {0, 2})),
               "sequence 1 of 2 tokens at byte 8");
  EXPECT_PRED2(Contains, error(Index(4, {4, -1}, {0, 16}, {0, 2})), "sequence 1 of -1 tokens");
  EXPECT_PRED2(Contains, error(Index(4, {1, 1}, {0, 4}, {0, 2})), "the tokens are 3");
  EXPECT_PRED2(Contains, error(Index(4, {3}, {0}, {0, 2})), "document bound 1 at sequence 2 of 1");
  EXPECT_PRED2(Contains, error(Index(4, {3}, {0}, {0})), "document bound 0 at sequence 0 of 1");
  std::string huge = good;
  huge.replace(18, 8, Bytes((uint64_t{1} << 62) + 2, 8));  // twelve of which wrap around
  EXPECT_PRED2(Contains, error(huge), "cannot hold");
  EXPECT_EQ(TokenFile::Open(WriteFile("y.bin", bin), 9, TokenFormat::kMegatron).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace data
