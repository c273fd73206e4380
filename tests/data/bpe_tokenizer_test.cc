// Byte-level tokenizers: against ids that the package `tokenizers` gave, and by hand.
#include "data/bpe_tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "data/json_lines.h"
#include "data/text_split.h"
#include "tests/data/files.h"

namespace data {
namespace {

using Ids = std::vector<int32_t>;

class BpeGoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(BpeGoldenTest, LinesHaveTheIdsOfThePackage) {
  const std::string path = std::string(SHERD_GOLDEN_BPE) + "/" + GetParam();
  const absl::StatusOr<BpeTokenizer> tokenizer = BpeTokenizer::Load(path + ".json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const absl::StatusOr<std::vector<JsonLine>> lines = ReadJsonLines(path + ".jsonl");
  ASSERT_TRUE(lines.ok()) << lines.status();
  ASSERT_GE(lines->size(), 60u);
  for (const JsonLine& line : *lines) {
    const std::vector<int64_t> wide = *line.Integers("ids");
    EXPECT_EQ(tokenizer->Encode(*line.Text("text")), Ids(wide.begin(), wide.end()))
        << *line.Text("text");
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, BpeGoldenTest,
                         ::testing::Values("gpt2", "smollm", "prefix", "whole"));

// Letters a to d, the space, and the merges ab, cd, abcd, " ab".
constexpr char kVocabulary[] =
    R"({"a":0,"b":1,"c":2,"d":3,"Ġ":4,"ab":5,"cd":6,"abcd":7,"Ġab":8,"é":9,"Ã":10,"©":11})";

std::string Json(const std::string& changed = "", const std::string& with = "") {
  std::string json =
      R"({"version":"1.0","truncation":null,"padding":null,
"added_tokens":[{"id":20,"content":"<s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
{"id":21,"content":"<sep>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":false}],
"normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
"post_processor":null,"decoder":{"type":"ByteLevel"},
"model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":"","end_of_word_suffix":"","fuse_unk":false,
"vocab":)" +
      std::string(kVocabulary) + R"(,"merges":["a b",["c","d"],"ab cd","Ġ ab"]}})";
  if (changed.empty()) return json;
  const size_t at = json.find(changed);
  EXPECT_NE(at, json.npos) << changed;
  return json.replace(at, changed.size(), with);
}

BpeTokenizer Made() { return *BpeTokenizer::Load(WriteFile("tokenizer.json", Json())); }

TEST(BpeTokenizerTest, MergesWhatComesFirstInTheList) {
  const BpeTokenizer tokenizer = Made();
  EXPECT_EQ(tokenizer.Encode("abcd"), (Ids{7}));
  EXPECT_EQ(tokenizer.Encode("bcda"), (Ids{1, 6, 0}));
  EXPECT_EQ(tokenizer.Encode(" abcd ab"), (Ids{4, 7, 8}));
  EXPECT_EQ(tokenizer.Encode(""), Ids());
  // "é" is two bytes, whose letters are tokens; the letter é itself is the byte 0xE9.
  EXPECT_EQ(tokenizer.Encode("\xC3\xA9"), (Ids{10, 11}));
  EXPECT_EQ(tokenizer.Encode("a\xE9"
                             "b"),
            (Ids{0, 9, 1}));
  EXPECT_EQ(tokenizer.Encode("axb"), (Ids{5}));  // no token for x, which is passed over
}

TEST(BpeTokenizerTest, AddedTokensAreFoundFirst) {
  const BpeTokenizer tokenizer = Made();
  EXPECT_EQ(tokenizer.Encode("ab<s><sep>ab<s"), (Ids{5, 20, 21, 5}));
  EXPECT_EQ(tokenizer.IdOf("<sep>"), 21);
  EXPECT_EQ(tokenizer.IdOf("ab"), 5);
  EXPECT_EQ(tokenizer.IdOf("<x>"), std::nullopt);
  EXPECT_TRUE(tokenizer.IsSpecial(20));
  EXPECT_FALSE(tokenizer.IsSpecial(21));
  EXPECT_EQ(tokenizer.vocabulary(), 22);
}

TEST(BpeTokenizerTest, DecodesBytes) {
  const BpeTokenizer tokenizer = Made();
  EXPECT_EQ(tokenizer.Decode(Ids{8, 20, 10, 11, 9}), " ab<s>\xC3\xA9\xE9");
  EXPECT_EQ(tokenizer.Decode(Ids{15, -1, 22}), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(BpeTokenizerTest, EveryTextComesBackFromATokenizerThatHasAllBytes) {
  BpeTokenizer::Contents contents;
  const auto utf8 = [](int code) {
    return code < 0x80 ? std::string(1, static_cast<char>(code))
                       : std::string{static_cast<char>(0xC0 | code >> 6),
                                     static_cast<char>(0x80 | (code & 0x3F))};
  };
  // As the source says: printable bytes in their places, then the others from 256 on.
  for (int byte = 0, other = 256; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    contents.vocabulary[utf8(printable ? byte : other++)] = byte;
  }
  const absl::StatusOr<BpeTokenizer> tokenizer = BpeTokenizer::Make(contents);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  Ids ids(256);
  for (size_t i = 0; i < 256; ++i) ids[i] = static_cast<int32_t>(i);
  EXPECT_EQ(tokenizer->Encode(all), ids);
  EXPECT_EQ(tokenizer->Decode(ids), all);
}

TEST(BpeTokenizerTest, LongWordsEndSoon) {
  const BpeTokenizer tokenizer = Made();
  std::string word;
  for (int i = 0; i < 100000; ++i) word += "abcd";
  EXPECT_EQ(tokenizer.Encode(word), Ids(100000, 7));
}

TEST(BpeTokenizerTest, AFolderOfTheOldFiles) {
  const std::string vocabulary =
      WriteFile("vocab.json", R"({"a":0,"b":1,"ab":2,"<|endoftext|>":3})");
  WriteFile("merges.txt", "#version: 0.2\na b\n");
  const std::string folder = std::filesystem::path(vocabulary).parent_path();
  std::filesystem::remove(folder + "/tokenizer.json");
  const absl::StatusOr<BpeTokenizer> tokenizer = BpeTokenizer::Load(folder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->Encode("aba<|endoftext|>b"), (Ids{2, 0, 3, 1}));
  WriteFile("merges.txt", "a b\na b c\n");
  EXPECT_PRED2(Contains, BpeTokenizer::Load(folder).status().ToString(),
               folder + "/merges.txt: merge 1 is 'a b c', not two tokens");
  // A tokenizer.json counts before them.
  WriteFile("tokenizer.json", Json());
  EXPECT_EQ(BpeTokenizer::Load(folder)->vocabulary(), 22);
}

TEST(BpeTokenizerTest, WhatIsNotSupportedIsNamed) {
  const std::string level =
      R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true})";
  struct Case {
    std::string changed, with, error;
  };
  for (const Case& c : std::vector<Case>{
           {R"("normalizer":null)", R"("normalizer":{"type":"NFC"})",
            "normalizer is an object of type \"NFC\", which is not supported"},
           {R"("truncation":null)", R"("truncation":{"max_length":5})",
            "truncation is an object, which"},
           {level, R"({"type":"Metaspace"})", "pre_tokenizer is an object of type \"Metaspace\""},
           {level, "null", "pre_tokenizer is null"},
           {level, R"({"type":"Sequence","pretokenizers":[{"type":"Split"},)" + level + "]}",
            "pre_tokenizer.pretokenizers[0] is an object of type \"Split\""},
           {level,
            R"({"type":"Sequence","pretokenizers":[{"type":"Digits","individual_digits":false},)" +
                level + "]}",
            "pre_tokenizer.pretokenizers[0].individual_digits is false"},
           {level, R"({"type":"Sequence","pretokenizers":[]})",
            "pre_tokenizer.pretokenizers is empty"},
           {R"("use_regex":true)", R"("use_regex":1)",
            "pre_tokenizer.use_regex is 1, not a boolean"},
           {R"("post_processor":null)", R"("post_processor":{"type":"TemplateProcessing"})",
            "post_processor is an object of type \"TemplateProcessing\""},
           {R"("type":"BPE")", R"("type":"Unigram")", "model.type is \"Unigram\""},
           {R"("dropout":null)", R"("dropout":0.1)", "model.dropout is 0.1"},
           {R"("fuse_unk":false)", R"("fuse_unk":true)", "model.fuse_unk is true"},
           {R"("unk_token":null)", R"("unk_token":"?")",
            "model.unk_token is '?', which is no token"},
           {R"("fuse_unk":false)", R"("other":1)", "model.other is 1"},
           {R"("single_word":false)", R"("single_word":true)",
            "added_tokens[0].single_word is true"},
           {R"("id":20)", R"("id":"20")", "added_tokens[0].id is \"20\", not an integer"},
           {R"("id":20)", R"("id":-4)", "added token '<s>' has id -1"},
           {R"("id":20)", R"("id":5)", "added token '<s>' has id 5, but that of another token"},
           {R"("content":"<s>")", R"("content":"ab")",
            "added token 'ab' has id 20, but is token 5"},
           {R"("content":"<s>")", R"("content":"<sep>")", "added token '<sep>' comes twice"},
           {R"("content":"<s>")", R"("content":"")", "added token 20 is empty"},
           {R"("a":0)", R"("a":1)", "token 'b' has id 1, which another one has"},
           {R"("a":0)", R"("a":-1)", "token 'a' has id -1, a negative one"},
           {R"("a":0)", R"("a":16777216)", "token id 16777216 is 16777216 or more"},
           {R"("a":0)", R"("a":1.5)", "model.vocab.a has no integer"},
           {R"("a b")", R"("ab")", "merge 0 is 'ab', not two tokens"},
           {R"("a b")", R"(["a"])", "model.merges[0] is neither a string nor a pair"},
           {R"("a b")", R"("a c")", "merge 0, 'a' and 'c', needs 'ac', which is no token"},
           {R"("version")", R"("version)", "the JSON is wrong at column "}}) {
    const std::string file = WriteFile("tokenizer.json", Json(c.changed, c.with));
    const absl::Status status = BpeTokenizer::Load(file).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.with;
    EXPECT_PRED2(Contains, status.ToString(), "tokenizer " + file + ": " + c.error);
  }
  EXPECT_EQ(BpeTokenizer::Load("/nowhere/tokenizer.json").status().code(),
            absl::StatusCode::kNotFound);
}

std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string_view> words;
  SplitWords(text, words);
  return {words.begin(), words.end()};
}

TEST(TextSplitTest, WordsByHand) {
  using Strings = std::vector<std::string>;
  EXPECT_EQ(Words("Hello, world  we'll"), (Strings{"Hello", ",", " world", " ", " we", "'ll"}));
  EXPECT_EQ(Words("a\n\n b  "), (Strings{"a", "\n\n", " b", "  "}));
  EXPECT_EQ(Words("\n\nb \tc"), (Strings{"\n", "\n", "b", " ", "\t", "c"}));
  EXPECT_EQ(Words(" 12ab'S"), (Strings{" 12", "ab", "'", "S"}));
  // Two ideographic spaces before a letter, and bytes that are no UTF-8.
  EXPECT_EQ(Words("\xE3\x80\x80\xE3\x80\x80z\xFF\xC3"),
            (Strings{"\xE3\x80\x80", "\xE3\x80\x80", "z", "\xFF\xC3"}));
  std::vector<std::string_view> parts;
  SplitNumbers("a12 \xC2\xBD", parts);
  EXPECT_EQ(parts, (std::vector<std::string_view>{"a", "1", "2", " ", "\xC2\xBD"}));
}

}  // namespace
}  // namespace data
