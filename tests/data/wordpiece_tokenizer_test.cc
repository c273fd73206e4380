// Tokenizers of word pieces: against ids that the package `tokenizers` gave, and by hand.
#include "data/wordpiece_tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "data/json_lines.h"
#include "tests/data/files.h"

namespace data {
namespace {

using Ids = std::vector<int32_t>;

class WordPieceGoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(WordPieceGoldenTest, LinesHaveTheIdsOfThePackage) {
  const std::string path = std::string(SHERD_GOLDEN_WORDPIECE) + "/" + GetParam();
  const auto tokenizer = WordPieceTokenizer::Load(path + ".json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto lines = ReadJsonLines(path + ".jsonl");
  ASSERT_TRUE(lines.ok()) << lines.status();
  ASSERT_GE(lines->size(), 120u);
  size_t cut = 0;
  for (const JsonLine& line : *lines) {
    const std::vector<int64_t> wide = *line.Integers("ids");
    const std::string text = *line.Text("text");
    const int64_t most = line.Has("most") ? line.Integers("most")->at(0) : 1 << 20;
    cut += wide.size() == static_cast<size_t>(most) ? 1 : 0;
    EXPECT_EQ(tokenizer->Encode(text, most), Ids(wide.begin(), wide.end())) << text;
  }
  EXPECT_GE(cut, 40u);
}

INSTANTIATE_TEST_SUITE_P(Rules, WordPieceGoldenTest, ::testing::Values("uncased", "cased", "raw"));

// A vocabulary by hand: 0 to 4 are special.
constexpr char kVocabulary[] =
    R"({"[PAD]":0,"[UNK]":1,"[CLS]":2,"[SEP]":3,"[MASK]":4,"un":5,"##aff":6,"##able":7,"##a":8,"una":9,"a":10,",":11,"##b":12})";
constexpr char kNormalizer[] =
    R"({"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true})";
constexpr char kTemplate[] =
    R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},)"
    R"({"SpecialToken":{"id":"[SEP]","type_id":0}}],"pair":[],"special_tokens":{"[CLS]":{"id":"[CLS]","ids":[2],"tokens":["[CLS]"]},)"
    R"("[SEP]":{"id":"[SEP]","ids":[3],"tokens":["[SEP]"]}}})";

std::string Json(const std::string& changed = "", const std::string& with = "") {
  std::string json =
      R"({"version":"1.0","truncation":null,"padding":null,
"added_tokens":[{"id":3,"content":"[SEP]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
{"id":20,"content":"Aa","single_word":false,"lstrip":false,"rstrip":false,"normalized":true,"special":false}],
"normalizer":)" +
      std::string(kNormalizer) +
      R"(,"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":)" + kTemplate +
      R"(,"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},
"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":)" +
      kVocabulary + "}}";
  if (changed.empty()) return json;
  const size_t at = json.find(changed);
  EXPECT_NE(at, json.npos) << changed;
  return json.replace(at, changed.size(), with);
}

absl::StatusOr<WordPieceTokenizer> Loaded(const std::string& json) {
  return WordPieceTokenizer::Load(WriteFile("tokenizer.json", json));
}

TEST(WordPieceTokenizerTest, LongestTokensFirst) {
  const WordPieceTokenizer tokenizer = *Loaded(Json());
  // "unaffable" begins with "una", behind which no token fits: a word is unknown as a whole then,
  // though "un", "##aff" and "##able" would do.
  EXPECT_EQ(tokenizer.Encode("unaffable"), (Ids{2, 1, 3}));
  EXPECT_EQ(tokenizer.Encode("unaffable, unbaffable"), (Ids{2, 1, 11, 5, 12, 6, 7, 3}));
  EXPECT_EQ(tokenizer.Encode("una, \xC3\x80"
                             "b abab"),
            (Ids{2, 9, 11, 10, 12, 10, 12, 8, 12, 3}));
  EXPECT_EQ(tokenizer.Encode(""), (Ids{2, 3}));
  EXPECT_EQ(tokenizer.Encode(" x a"), (Ids{2, 1, 10, 3}));
  EXPECT_EQ(tokenizer.Encode("##a"), (Ids{2, 1, 1, 10, 3}));
}

TEST(WordPieceTokenizerTest, LongWordsAreUnknown) {
  const WordPieceTokenizer tokenizer = *Loaded(Json());
  std::string word = "un";
  for (int i = 0; i < 98; ++i) word += "b";
  Ids ids = {2, 5};
  ids.insert(ids.end(), 98, 12);
  ids.push_back(3);
  EXPECT_EQ(tokenizer.Encode(word), ids);
  EXPECT_EQ(tokenizer.Encode(word + "b"), (Ids{2, 1, 3}));
  // Characters count, not bytes: 99 letters of two bytes each are unknown for what they are.
  WordPieceTokenizer::Contents contents;
  contents.vocabulary = {{"[PAD]", 0}, {"[UNK]", 1},    {"[CLS]", 2},
                         {"[SEP]", 3}, {"\xC3\xB8", 4}, {"##\xC3\xB8", 5}};
  contents.rules.max_characters = 3;
  const WordPieceTokenizer made = *WordPieceTokenizer::Make(contents);
  EXPECT_EQ(made.Encode("\xC3\xB8\xC3\xB8\xC3\xB8"), (Ids{2, 4, 5, 5, 3}));
  EXPECT_EQ(made.Encode("\xC3\xB8\xC3\xB8\xC3\xB8\xC3\xB8"), (Ids{2, 1, 3}));
}

TEST(WordPieceTokenizerTest, AddedTokensAreFoundFirst) {
  const WordPieceTokenizer tokenizer = *Loaded(Json());
  // [SEP] as it stands; [MASK] is not added, so it is punctuation and a word.
  EXPECT_EQ(tokenizer.Encode("a[SEP]b"), (Ids{2, 10, 3, 1, 3}));
  EXPECT_EQ(tokenizer.Encode("[sep]"), (Ids{2, 1, 1, 1, 3}));
  EXPECT_EQ(tokenizer.Encode("[MASK]"), (Ids{2, 1, 1, 1, 3}));
  // "Aa" is found in the text when both are normalized.
  EXPECT_EQ(tokenizer.Encode("a\xC3\xA1 AA"), (Ids{2, 20, 20, 3}));
  // Of several that begin at a place the longest, whichever is listed first.
  WordPieceTokenizer::Contents contents;
  contents.vocabulary = {{"[PAD]", 0}, {"[UNK]", 1}, {"[CLS]", 2}, {"[SEP]", 3}};
  contents.added = {
      {.id = 7, .content = "<xy"}, {.id = 5, .content = "<x"}, {.id = 6, .content = "x"}};
  EXPECT_EQ(WordPieceTokenizer::Make(contents)->Encode("<xx<xy"), (Ids{2, 5, 6, 7, 3}));
  EXPECT_EQ(tokenizer.IdOf("Aa"), 20);
  EXPECT_EQ(tokenizer.IdOf("una"), 9);
  EXPECT_EQ(tokenizer.IdOf("aa"), std::nullopt);
  EXPECT_EQ(tokenizer.Token(20), "Aa");
  EXPECT_EQ(tokenizer.Token(6), "##aff");
  EXPECT_EQ(tokenizer.Token(13), "");
  EXPECT_EQ(tokenizer.Token(-1), "");
  EXPECT_EQ(tokenizer.vocabulary(), 21);
  EXPECT_EQ(tokenizer.pad(), 0);
  EXPECT_EQ(tokenizer.unknown(), 1);
}

TEST(WordPieceTokenizerTest, TooManyTokensAreCutBeforeTheLast) {
  const WordPieceTokenizer tokenizer = *Loaded(Json());
  EXPECT_EQ(tokenizer.around(), 2);
  EXPECT_EQ(tokenizer.Encode("a a ab", 6), (Ids{2, 10, 10, 10, 12, 3}));
  EXPECT_EQ(tokenizer.Encode("a a ab", 5), (Ids{2, 10, 10, 10, 3}));  // within a word
  EXPECT_EQ(tokenizer.Encode("a[SEP]a", 3), (Ids{2, 10, 3}));
  EXPECT_EQ(tokenizer.Encode("a", 2), (Ids{2, 3}));
  for (const int64_t most : {int64_t{1}, int64_t{0}, INT64_MIN}) {
    EXPECT_EQ(tokenizer.Encode("a", most), (Ids{2, 3}));
  }
}

TEST(WordPieceTokenizerTest, TheOtherTemplatesAndNone) {
  const char pair[] = R"({"type":"BertProcessing","sep":["[SEP]",3],"cls":["[CLS]",2]})";
  EXPECT_EQ(Loaded(Json(kTemplate, pair))->Encode("a"), (Ids{2, 10, 3}));
  EXPECT_EQ(Loaded(Json(kTemplate, "null"))->Encode("a"), Ids{10});
  const char roberta[] =
      R"({"type":"RobertaProcessing","sep":["a",10],"cls":["Aa",20],"trim_offsets":true,"add_prefix_space":false})";
  EXPECT_EQ(Loaded(Json(kTemplate, roberta))->Encode("a"), (Ids{20, 10, 10}));
}

TEST(WordPieceTokenizerTest, HostileTextsEndSoon) {
  WordPieceTokenizer::Contents contents;
  contents.vocabulary = {{"[PAD]", 0}, {"[UNK]", 1}, {"[CLS]", 2},
                         {"[SEP]", 3}, {"a", 4},     {"##a", 5}};
  contents.rules.max_characters = INT64_MAX;
  const WordPieceTokenizer tokenizer = *WordPieceTokenizer::Make(contents);
  Ids ids(300002, 5);
  ids[0] = 2;
  ids[1] = 4;
  ids.back() = 3;
  EXPECT_EQ(tokenizer.Encode(std::string(300000, 'a')), ids);
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(tokenizer.Encode(bytes).front(), 2);
}

// A folder of this test's own.
std::string Folder(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string folder = std::filesystem::path(WriteFile("x", "x")).parent_path();
  std::filesystem::remove_all(folder);
  for (const auto& [name, content] : files) WriteFile(name, content);
  return folder;
}

constexpr char kLines[] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\nA\na\n##b\n[MASK]\n\xC3\xA9\n";

TEST(WordPieceTokenizerTest, AFolderOfAVocabulary) {
  const WordPieceTokenizer plain = *WordPieceTokenizer::Load(Folder({{"vocab.txt", kLines}}));
  EXPECT_EQ(plain.Encode("AB [MASK] \xC3\xA9"), (Ids{2, 5, 6, 7, 1, 3}));
  EXPECT_EQ(plain.Encode("[mask]"), (Ids{2, 1, 1, 1, 3}));
  EXPECT_EQ(plain.vocabulary(), 9);
  EXPECT_EQ(plain.Token(6), "##b");
  // Line ends of other systems, none at the end, and a token twice.
  const WordPieceTokenizer other =
      *WordPieceTokenizer::Load(Folder({{"vocab.txt", "[PAD]\r\n[UNK]\r[CLS]\n[SEP]\na\n\na"}}));
  EXPECT_EQ(other.Encode("a"), (Ids{2, 6, 3}));
  EXPECT_EQ(other.vocabulary(), 7);
  const WordPieceTokenizer cased = *WordPieceTokenizer::Load(Folder(
      {{"vocab.txt", kLines},
       {"tokenizer_config.json",
        R"({"do_lower_case":false,"tokenizer_class":"BertTokenizerFast","model_max_length":512,"cls_token":{"content":"a"}})"},
       {"special_tokens_map.json", R"({"sep_token":"A","cls_token":"[CLS]"})"}}));
  EXPECT_EQ(cased.Encode("A Ab a \xC3\xA9"), (Ids{5, 4, 4, 1, 5, 8, 4}));
  const WordPieceTokenizer added = *WordPieceTokenizer::Load(Folder(
      {{"vocab.txt", kLines},
       {"tokenizer_config.json",
        R"({"strip_accents":false,"added_tokens_decoder":{"9":{"content":"<x>","special":true}}})"}}));
  EXPECT_EQ(added.Encode("\xC3\xA9<x>"), (Ids{2, 8, 9, 3}));
}

TEST(WordPieceTokenizerTest, ATokenizerJsonCountsBeforeAVocabulary) {
  const std::vector<std::pair<std::string, std::string>> files = {{"vocab.txt", kLines},
                                                                  {"tokenizer.json", Json()}};
  EXPECT_EQ(WordPieceTokenizer::Load(Folder(files))->vocabulary(), 21);
  const auto with = [&files](const std::string& config) {
    auto more = files;
    more.emplace_back("tokenizer_config.json", config);
    return WordPieceTokenizer::Load(Folder(more));
  };
  EXPECT_EQ(with(R"({"pad_token":"a","do_lower_case":true,"strip_accents":true})")->pad(), 10);
  EXPECT_PRED2(Contains, with(R"({"do_lower_case":false})").status().ToString(),
               "tokenizer.json: normalizer.lowercase means true, but do_lower_case of "
               "tokenizer_config.json false");
  EXPECT_PRED2(Contains, with(R"({"strip_accents":false})").status().ToString(),
               "normalizer.strip_accents means true");
  EXPECT_PRED2(Contains, with(R"({"tokenize_chinese_chars":false})").status().ToString(),
               "normalizer.handle_chinese_chars means true");
  EXPECT_PRED2(Contains, with("[]").status().ToString(),
               "tokenizer_config.json: the file is an array");
}

struct Case {
  std::string changed, with, error;
};

TEST(WordPieceTokenizerTest, WhatIsNotSupportedIsNamed) {
  for (const Case& c : std::vector<Case>{
           {kNormalizer, "null", "normalizer is null, which is not supported"},
           {kNormalizer, R"({"type":"NFC"})", "normalizer is an object of type \"NFC\""},
           {R"("lowercase":true)", R"("lowercase":1)", "normalizer.lowercase is 1, not a boolean"},
           {R"("strip_accents":null)", R"("strip_accents":"no")",
            "normalizer.strip_accents is \"no\", not a boolean or null"},
           {R"("clean_text")", R"("clear_text")", "normalizer.clear_text is true"},
           {"BertPreTokenizer", "Whitespace", "pre_tokenizer is an object of type \"Whitespace\""},
           {R"("truncation":null)", R"("truncation":{"direction":"Left"})",
            "truncation.direction is \"Left\", which is not supported"},
           {R"("padding":null)", R"("padding":{"direction":"Left"})",
            "padding.direction is \"Left\""},
           {R"("padding":null)", R"("padding":{"pad_token":"<pad>"})",
            "the token that pads, '<pad>', is not in the vocabulary"},
           {R"("type":"WordPiece","unk)", R"("type":"BPE","unk)",
            "model is an object of type \"BPE\""},
           {R"("max_input_chars_per_word":100)", R"("max_input_chars_per_word":0)",
            "words of up to 0 characters"},
           {R"("unk_token":"[UNK]")", R"("unk_token":"?")",
            "the token for unknown words, '?', is not in the vocabulary"},
           {R"("unk_token":"[UNK]",)", "", "model.unk_token is null, not a string"},
           {R"("una":9)", R"("una":8)", "token 'una' has id 8, which another one has"},
           {R"("una":9)", R"("una":-8)", "token 'una' has id -1, a negative one"},
           {R"("una":9)", R"("una":16777216)", "token id 16777216 is 16777216 or more"},
           {R"("una":9)", R"("una":"9")", "model.vocab.una has no integer"},
           {R"("single_word":false)", R"("single_word":true)",
            "added_tokens[0].single_word is true"},
           {R"("id":20)", R"("id":5)", "added token 'Aa' has id 5, but that of another token"},
           {R"("id":3,"content":"[SEP]")", R"("id":30,"content":"[SEP]")",
            "added token '[SEP]' has id 30, but is token 3 of the vocabulary"},
           {R"("content":"Aa")", R"("content":"\u0301")",
            "added token '\xCC\x81' is empty when it is normalized"},
           {R"("version")", R"("other")", "other is \"1.0\", which is not supported"},
           {R"({"version")", R"(["version")", "tokenizer.json: the JSON is wrong at"}}) {
    const std::string error = Loaded(Json(c.changed, c.with)).status().ToString();
    EXPECT_PRED2(Contains, error, c.error);
    EXPECT_PRED2(Contains, error, "/tokenizer.json: ");
  }
}

TEST(WordPieceTokenizerTest, TemplatesThatAreNotSupportedAreNamed) {
  for (const Case& c : std::vector<Case>{
           {"TemplateProcessing", "ByteLevel", "post_processor is an object of type \"ByteLevel\""},
           {R"("id":"A","type_id":0)", R"("id":"B","type_id":0)",
            "post_processor.single[1].Sequence.id is \"B\""},
           {R"("id":"A","type_id":0)", R"("id":"A","type_id":1)",
            "post_processor.single[1].Sequence.type_id is 1"},
           {R"({"Sequence":{"id":"A","type_id":0}},)", "", "post_processor.single has no text"},
           {R"({"Sequence")", R"({"Text")", "post_processor.single[1] is an object"},
           {R"({"SpecialToken":{"id":"[SEP]")", R"({"SpecialToken":{"id":"[END]")",
            "post_processor.special_tokens.[END] is null, not an object"},
           {R"("ids":[2])", R"("ids":[4])",
            "post_processor.special_tokens.[CLS] has id 4 for '[CLS]', which is not its id"},
           {R"("ids":[2])", R"("ids":[2,2])",
            "post_processor.special_tokens.[CLS] has no id for each token"},
           {kTemplate, R"({"type":"BertProcessing","sep":["[SEP]",4],"cls":["[CLS]",2]})",
            "post_processor.sep has id 4 for '[SEP]', which is not its id"},
           {kTemplate, R"({"type":"BertProcessing","sep":["[SEP]"],"cls":["[CLS]",2]})",
            "post_processor.sep is no pair of a token and its id"}}) {
    EXPECT_PRED2(Contains, Loaded(Json(c.changed, c.with)).status().ToString(), c.error);
  }
}

TEST(WordPieceTokenizerTest, FoldersThatAreNotSupportedAreNamed) {
  const auto error = [](const std::string& lines, const std::string& config,
                        const std::string& other = "x") {
    return WordPieceTokenizer::Load(
               Folder({{"vocab.txt", lines}, {"tokenizer_config.json", config}, {other, "{}"}}))
        .status()
        .ToString();
  };
  EXPECT_PRED2(Contains, error("a\n", "{}"),
               "vocab.txt: the token for unknown words, '[UNK]', is not in the vocabulary");
  EXPECT_PRED2(Contains, error("a\nb\xFF\n", "{}"), "vocab.txt: line 2 is no UTF-8");
  EXPECT_PRED2(Contains, error(kLines, R"({"tokenizer_class":"T5Tokenizer"})"),
               "tokenizer_config.json: tokenizer_class is \"T5Tokenizer\", which is not supported");
  EXPECT_PRED2(Contains, error(kLines, R"({"do_basic_tokenize":false})"),
               "do_basic_tokenize is false");
  EXPECT_PRED2(Contains, error(kLines, R"({"never_split":["a"]})"), "never_split is an array");
  EXPECT_PRED2(Contains, error(kLines, R"({"pad_token":1})"), "pad_token is 1, not a string");
  EXPECT_PRED2(Contains, error(kLines, R"({"added_tokens_decoder":{"x":{}}})"),
               "added_tokens_decoder.x is no id");
  EXPECT_PRED2(Contains, error(kLines, "{}", "added_tokens.json"),
               "added_tokens.json stands beside it");
  EXPECT_PRED2(Contains, WordPieceTokenizer::Load(Folder({{"x", "x"}})).status().ToString(),
               "tokenizer.json");
}

}  // namespace
}  // namespace data
