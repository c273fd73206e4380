// Texts as BERT's tokenizers look at them: by hand, and against hashes of what the package
// `tokenizers` makes of every code point.
#include "data/bert_text.h"

#include <gtest/gtest.h>

#include "data/code_points.h"
#include "data/json_lines.h"
#include "data/unicode_text.h"

namespace data {
namespace {

constexpr BertRules kNone = {false, false, false, false};

std::string Normalized(std::string_view text, const BertRules& rules = {}) {
  return NormalizeBert(text, rules);
}

std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string_view> words;
  SplitBert(text, words);
  return {words.begin(), words.end()};
}

TEST(CodePointsTest, ValuesOfEachLengthAndBack) {
  const std::pair<std::string, uint32_t> cases[] = {{"A", 0x41},
                                                    {"\x7F", 0x7F},
                                                    {"\xC2\x80", 0x80},
                                                    {"\xDF\xBF", 0x7FF},
                                                    {"\xE0\xA0\x80", 0x800},
                                                    {"\xEF\xBF\xBF", 0xFFFF},
                                                    {"\xF0\x90\x80\x80", 0x10000},
                                                    {"\xF4\x8F\xBF\xBF", 0x10FFFF}};
  for (const auto& [text, code] : cases) {
    const CodePoint first = FirstCodePoint(text + "z");
    EXPECT_EQ(first.code, code);
    EXPECT_EQ(first.bytes, text.size());
    EXPECT_TRUE(first.valid);
    std::string back;
    AppendUtf8(code, back);
    EXPECT_EQ(back, text);
  }
  // A lone continuation, an overlong form, a surrogate, and what ends too soon.
  for (const std::string text : {"\x80", "\xC0\x80", "\xED\xA0\x80", "\xE2\x82"}) {
    const CodePoint first = FirstCodePoint(text);
    EXPECT_EQ(first.code, 0xFFFDu);
    EXPECT_EQ(first.bytes, 1u);
    EXPECT_FALSE(first.valid);
  }
}

TEST(BertTextTest, CleansControlCharactersAndWhiteSpace) {
  const BertRules rules = {
      .handle_chinese_chars = false, .strip_accents = false, .lowercase = false};
  // Tab, line ends, no-break space, line separator and ideographic space; then what is dropped:
  // vertical tab, delete, next line, soft hyphen, zero-width joiner, private use, U+FFFD, NUL.
  EXPECT_EQ(Normalized("a\tb\r\nc\xC2\xA0"
                       "d\xE2\x80\xA8"
                       "e\xE3\x80\x80"
                       "f",
                       rules),
            "a b  c d e f");
  EXPECT_EQ(Normalized(
                std::string("a\x0B\x7F\xC2\x85\xC2\xAD\xE2\x80\x8D\xEE\x80\x80\xEF\xBF\xBD\0b", 18),
                rules),
            "ab");
  EXPECT_EQ(Normalized("a\x80\xFF"
                       "b\xC3",
                       rules),
            "ab");
  EXPECT_EQ(Normalized("a\t\x0B\xFF", kNone), "a\t\x0B\xEF\xBF\xBD");
}

TEST(BertTextTest, IdeographsStandAlone) {
  BertRules rules = kNone;
  rules.handle_chinese_chars = true;
  // U+4E2D, U+3400, U+20000; katakana and Hangul are letters like others.
  EXPECT_EQ(Normalized("a\xE4\xB8\xAD"
                       "b",
                       rules),
            "a \xE4\xB8\xAD b");
  EXPECT_EQ(Normalized("\xE3\x90\x80\xF0\xA0\x80\x80", rules), " \xE3\x90\x80  \xF0\xA0\x80\x80 ");
  EXPECT_EQ(Normalized("\xE3\x82\xAB\xEA\xB0\x80", rules), "\xE3\x82\xAB\xEA\xB0\x80");
}

TEST(BertTextTest, AccentsGoWithTheirLetters) {
  BertRules rules = kNone;
  rules.strip_accents = true;
  // é, Å, Ệ; U+212B, Angstrom, is Å; ø has no decomposition.
  EXPECT_EQ(Normalized("\xC3\xA9\xC3\x85\xE1\xBB\x86\xE2\x84\xAB\xC3\xB8", rules), "eAEA\xC3\xB8");
  // A mark that takes space, U+0903, stays.
  EXPECT_EQ(Normalized("\xE0\xA4\x95\xE0\xA4\x83", rules), "\xE0\xA4\x95\xE0\xA4\x83");
  rules = kNone;
  rules.lowercase = true;
  EXPECT_EQ(Normalized("\xC3\x89", rules), "\xC3\xA9");
}

TEST(BertTextTest, LowerCaseIsOfEachLetter) {
  EXPECT_EQ(Lowercased(U"AZ\u00C0\u00D7\u0100\u0101"), U"az\u00E0\u00D7\u0101\u0101");
  EXPECT_EQ(Lowercased(U"\u0130\u1E9E\u01C5\u03A3"), U"i\u0307\u00DF\u01C6\u03C3");
  EXPECT_EQ(Lowercased(U"\u0391\u03A3"), U"\u03B1\u03C3");  // a last sigma too
  EXPECT_EQ(Lowercased(U"\u2C62\U00010400\uA7AE"), U"\u026B\U00010428\u026A");
}

TEST(BertTextTest, DecomposesToTheEndAndOrdersMarks) {
  // s with dot below and above, in one step and in two; Hangul with and without a last consonant.
  EXPECT_EQ(Decomposed(U"\u1E69"), U"s\u0323\u0307");
  EXPECT_EQ(Decomposed(U"\u1E61\u0323"), U"s\u0323\u0307");
  EXPECT_EQ(Decomposed(U"\uAC00\uAC01\uD7A3"), U"\u1100\u1161\u1100\u1161\u11A8\u1112\u1175\u11C2");
  // Classes 230, 220, 1; of two of one class the first stays first; U+034F, class 0, is a border.
  EXPECT_EQ(Decomposed(U"a\u0301\u0316\u0334"), U"a\u0334\u0316\u0301");
  EXPECT_EQ(Decomposed(U"a\u0301\u0300\u0316"), U"a\u0316\u0301\u0300");
  EXPECT_EQ(Decomposed(U"a\u0301\u034F\u0316"), U"a\u0301\u034F\u0316");
  EXPECT_EQ(Decomposed(U"\uF900\uFB01\u00BD"), U"\u8C48\uFB01\u00BD");  // canonical ones alone
}

TEST(BertTextTest, WordsAndPunctuation) {
  using Strings = std::vector<std::string>;
  EXPECT_EQ(Words("Hey friend!  How're $5^_?"),
            (Strings{"Hey", "friend", "!", "How", "'", "re", "$", "5", "^", "_", "?"}));
  // An em dash is punctuation; a pound sign, a degree and a copyright are not.
  EXPECT_EQ(Words("a\xE2\x80\x94\xC2\xA3"
                  "b\xC2\xB0\xC2\xA9"),
            (Strings{"a", "\xE2\x80\x94",
                     "\xC2\xA3"
                     "b\xC2\xB0\xC2\xA9"}));
  EXPECT_EQ(Words("a\xE3\x80\x80\t\n"), Strings{"a"});
  EXPECT_EQ(Words(" \n"), Strings());
}

uint32_t Fnv1a(std::string_view text) {
  uint32_t value = 0x811C9DC5;
  for (const char c : text) value = (value ^ static_cast<uint8_t>(c)) * 0x01000193;
  return value;
}

TEST(BertTextTest, EveryCodePointIsAsThePackageHasIt) {
  const auto lines = ReadJsonLines(std::string(SHERD_GOLDEN_WORDPIECE) + "/normalizer.jsonl");
  ASSERT_TRUE(lines.ok()) << lines.status();
  ASSERT_EQ(lines->size(), 3u);
  for (const JsonLine& line : *lines) {
    const std::string flags = *line.Text("rules");
    const BertRules rules = {flags[0] == '1', flags[1] == '1', flags[2] == '1', flags[3] == '1'};
    const std::vector<int64_t> hashes = *line.Integers("hashes");
    ASSERT_EQ(hashes.size(), 0x110u);
    for (uint32_t block = 0; block < 0x110; ++block) {
      std::string text;
      for (uint32_t code = block << 12; code < (block + 1) << 12; ++code) {
        if (code >= 0xD800 && code < 0xE000) continue;
        // Between marks of the last and of the first class.
        text += "x\xCD\x85";
        AppendUtf8(code, text);
        text += "\xCC\xB4";
      }
      EXPECT_EQ(Fnv1a(NormalizeBert(text, rules)), hashes[block])
          << "rules " << flags << ", U+" << std::hex << (block << 12);
    }
  }
}

}  // namespace
}  // namespace data
