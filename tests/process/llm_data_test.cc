#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string_view>

#include "data/order.h"
#include "data/sample_list.h"
#include "llm/bigram.h"
#include "llm/dataset.h"

namespace llm {
namespace {

std::vector<uint8_t> Bytes(std::string_view text) { return {text.begin(), text.end()}; }

std::string WriteTemporary(const std::string& name, std::string_view text) {
  const std::string path = testing::TempDir() + "llm_data_test_" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

// The tokens of all rows, one after the other, without padding.
std::vector<int64_t> TokensOf(const data::Samples& samples) {
  std::vector<int64_t> tokens;
  for (int64_t i = 0; i < samples.size(); ++i) {
    const data::PackedRow row = samples.Row(i);
    tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.begin() + row.bounds.back());
  }
  return tokens;
}

Options Reading(std::vector<std::string> files, int64_t seq) {
  Options options;
  options.data = std::move(files);
  options.seq = seq;
  return options;
}

std::string ErrorOf(const Options& options) {
  const absl::Status status = Dataset::Open(options).status();
  EXPECT_FALSE(status.ok());
  return std::string(status.message());
}

TEST(DatasetTest, TextsFollowOneAnotherAndTheEndIsHeldOut) {
  const std::string first = WriteTemporary("first", std::string(60, 'a'));
  const std::string second = WriteTemporary("second", std::string(40, 'b'));
  const absl::StatusOr<Dataset> data = Dataset::Open(Reading({first, second}, 4));
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<int64_t> expected(60, 'a');
  expected.insert(expected.end(), 35, 'b');
  EXPECT_EQ(TokensOf(data->train()), expected);
  EXPECT_EQ(TokensOf(data->validation()), std::vector<int64_t>(5, 'b'));
  EXPECT_EQ(data->train_tokens(), 95);
  EXPECT_EQ(data->validation_tokens(), 5);
  EXPECT_TRUE(data->bytes());
  // A row's labels are the bytes after; nothing is predicted across files.
  EXPECT_EQ(data->train().Row(0).labels, (std::vector<int64_t>{'a', 'a', 'a', 'a'}));
  EXPECT_EQ(data->train().Row(14).labels, (std::vector<int64_t>{'a', 'a', 'a', -100}));
}

TEST(DatasetTest, ValidationHoldsAtLeastOneWindow) {
  const absl::StatusOr<Dataset> data = Dataset::FromText("0123456789", 3);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(TokensOf(data->train()), (std::vector<int64_t>{'0', '1', '2', '3', '4', '5'}));
  EXPECT_EQ(TokensOf(data->validation()), (std::vector<int64_t>{'6', '7', '8', '9'}));
}

TEST(DatasetTest, ShortTextNamesBothNumbers) {
  const absl::Status status = Dataset::FromText("0123456", 3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "the data has 7 bytes, but --seq 3 needs at least 8: one window of 4 to learn and one to "
      "measure");
}

TEST(DatasetTest, BadTextsAreNamed) {
  const std::string missing = testing::TempDir() + "llm_data_test_no_such_file";
  EXPECT_EQ(ErrorOf(Reading({missing}, 4)), "text file " + missing + " cannot be found");
  const std::string empty = WriteTemporary("empty", "");
  EXPECT_EQ(ErrorOf(Reading({empty}, 4)), "text file " + empty + " is empty");
  EXPECT_EQ(ErrorOf(Reading({testing::TempDir()}, 4)),
            "text file " + testing::TempDir() + " is a folder");
}

TEST(DatasetTest, TokensBecomePackedDocuments) {
  // Documents 5 1 0 and 7 0 and so on, 20 of each, as u16.
  std::string bytes;
  for (int i = 0; i < 20; ++i) {
    for (const char token : {5, 1, 0, 7, 0}) bytes += {token, '\0'};
  }
  Options options = Reading({WriteTemporary("tokens.bin", bytes)}, 6);
  options.vocabulary = 8;
  options.end_token = 0;
  const absl::StatusOr<Dataset> data = Dataset::Open(options);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->vocabulary(), 8);
  EXPECT_FALSE(data->bytes());
  EXPECT_EQ(data->train_tokens() + data->validation_tokens(), 100);
  const data::PackedRow row = data->train().Row(0);
  EXPECT_EQ(row.tokens, (std::vector<int64_t>{5, 1, 0, 7, 0, 0}));  // the last is padding
  EXPECT_EQ(row.labels, (std::vector<int64_t>{1, 0, -100, 0, -100, -100}));

  options.end_token = -1;
  options.vocabulary = 7;
  EXPECT_EQ(ErrorOf(options),
            "token file " + options.data[0] + " has token 7 at position 3, outside [0, 7)");
  options.vocabulary = 0;
  EXPECT_EQ(ErrorOf(options), "token file " + options.data[0] +
                                  " needs --vocab, the number of its tokenizer's tokens");
}

TEST(DatasetTest, SamplesOfJsonLinesAreRowsOfTheirOwn) {
  Options options =
      Reading({WriteTemporary("s.jsonl",
                              "{\"text\": \"abc\"}\n{\"tokens\": [1, 2], \"labels\": [-100, 9]}\n\n"
                              "{\"text\": \"z\"}\n")},
              3);
  const absl::StatusOr<Dataset> data = Dataset::Open(options);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->train().size(), 2);
  EXPECT_EQ(data->train().Row(0).labels, (std::vector<int64_t>{'b', 'c', -100}));
  EXPECT_EQ(data->train().Row(1).tokens, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(data->train().Row(1).labels, (std::vector<int64_t>{-100, 9}));
  EXPECT_EQ(TokensOf(data->validation()), (std::vector<int64_t>{'z'}));
  EXPECT_EQ(data->train_tokens(), 5);

  options.seq = 2;
  EXPECT_EQ(ErrorOf(options), options.data[0] + ":1: the sample has 3 tokens, more than --seq 2");
  options.seq = 3;
  options.vocabulary = 255;
  EXPECT_EQ(ErrorOf(options), options.data[0] +
                                  ":1: the sample is a text, whose 256 tokens are bytes, but "
                                  "--vocab is 255");
  EXPECT_EQ(ErrorOf(Reading({WriteTemporary("one.jsonl", "{\"text\": \"abc\"}")}, 3)),
            "the data has one sample (" + testing::TempDir() +
                "llm_data_test_one.jsonl), but one to learn and one to measure are needed");
}

TEST(DatasetTest, TextsOfATokenizerFitTheVocabularyThatIsGiven) {
  const std::string folder = testing::TempDir() + "llm_data_test_tokenizer";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/tokenizer.json")
      << R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
             "model": {"type": "BPE", "vocab": {"a": 1, "b": 2, "ab": 3}, "merges": ["a b"]}})";
  Options options =
      Reading({WriteTemporary("words.jsonl", "{\"text\": \"ba\"}\n{\"text\": \"aab\"}\n")}, 4);
  options.init = folder;
  for (const int64_t vocabulary : {0, 4}) {
    options.vocabulary = vocabulary;
    const absl::StatusOr<Dataset> data = Dataset::Open(options);
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_EQ(data->vocabulary(), 4);
    EXPECT_EQ(TokensOf(data->train()), (std::vector<int64_t>{2, 1}));
    EXPECT_EQ(TokensOf(data->validation()), (std::vector<int64_t>{1, 3}));
  }
  options.vocabulary = 3;
  EXPECT_EQ(ErrorOf(options),
            options.data[0] + ":2: the text has the tokenizer's token 3, but --vocab is 3");
  options.data = {WriteTemporary("none.jsonl", "{\"text\": \"ba\"}\n{\"text\": \"xyz\"}\n")};
  EXPECT_EQ(ErrorOf(options), options.data[0] + ":2: the text has no token of the tokenizer");
}

TEST(DatasetTest, KindsAreNotMixedAndFlagsBelongToTheirs) {
  EXPECT_EQ(ErrorOf(Reading({"a.txt", "b.bin"}, 3)),
            "--data mixes text a.txt with token file b.bin; give one kind");
  Options options = Reading({"a.txt"}, 3);
  options.vocabulary = 300;
  EXPECT_EQ(ErrorOf(options),
            "--vocab belongs to token files and JSON lines; the tokens of text a.txt are its "
            "bytes");
  options.vocabulary = 0;
  options.end_token = 1;
  EXPECT_EQ(ErrorOf(options), "--end_token belongs to token files (NAME.bin)");
}

TEST(DatasetTest, SpreadRowsAreAllOrEven) {
  const absl::StatusOr<Dataset> data = Dataset::FromText(std::string(200, 'x'), 4);
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->train().size(), 48);  // 190 bytes, 4 a row
  EXPECT_EQ(SpreadRows(data->train(), 5), (std::vector<int64_t>{0, 9, 19, 28, 38}));
  EXPECT_EQ(SpreadRows(data->validation(), 100), (std::vector<int64_t>{0, 1, 2}));
}

TEST(BigramTest, ProbabilitiesAreThoseOfTheFormula) {
  const Bigram model(Bytes("abaab"), 2.0);
  // Pairs: ab 2, ba 1, aa 1. p(b) = (2 + 1) / (5 + 256).
  EXPECT_NEAR(model.Probability('a', 'b'), (2 + 2.0 * 3 / 261) / (3 + 2.0), 1e-15);
  EXPECT_NEAR(model.Probability('z', 'b'), 3.0 / 261, 1e-15);
}

TEST(BigramTest, ProbabilitiesSumToOne) {
  const Bigram model(Bytes("in the beginning god created the heaven and the earth"));
  for (const int previous : {int{'e'}, int{'q'}, 0}) {
    double sum = 0;
    for (int next = 0; next < 256; ++next) {
      sum += model.Probability(static_cast<uint8_t>(previous), static_cast<uint8_t>(next));
    }
    EXPECT_NEAR(sum, 1.0, 1e-12);
  }
}

TEST(BigramTest, MeanLossIsOfTheLabelsAlone) {
  const Bigram model(Bytes("abaab"), 2.0);
  const data::SampleList samples(
      {{.tokens = {'b', 'c', 'd'}, .labels = {'c', -100, 'z'}}, {.text = "ef"}});
  const double expected =
      -(std::log(model.Probability('b', 'c')) + std::log(model.Probability('d', 'z')) +
        std::log(model.Probability('e', 'f'))) /
      3;
  EXPECT_NEAR(model.MeanLoss(samples), expected, 1e-12);
  const double text =
      -(std::log(model.Probability('a', 'b')) + std::log(model.Probability('b', 'x'))) / 2;
  EXPECT_NEAR(model.MeanLoss(Bytes("abx")), text, 1e-12);
}

TEST(BigramTest, SamplesAreFittedAsTheyFollow) {
  const Bigram text(Bytes("abaab"));
  const Bigram samples(data::SampleList({{.text = "aba"}, {.text = "ab"}}));
  for (const char next : {'a', 'b', 'z'}) {
    EXPECT_EQ(samples.Probability('a', static_cast<uint8_t>(next)),
              text.Probability('a', static_cast<uint8_t>(next)));
  }
}

TEST(BigramTest, ChosenStrengthIsNearTheBestOnHeldOutText) {
  // Words of four letters in a fixed random order, so that counts are sparse.
  std::vector<uint8_t> text;
  const data::Permutation permutation(20000, 3);
  for (int64_t i = 0; i < 4000; ++i) {
    const int64_t word = permutation(i) % 300;
    for (const int64_t part : {word % 7, word % 11, word % 13, word % 17}) {
      text.push_back(static_cast<uint8_t>('a' + part));
    }
    text.push_back(' ');
  }
  const std::span<const uint8_t> train(text.data(), 16000), rest(text.data() + 16000, 4000);
  const double chosen = Bigram(train).MeanLoss(rest);
  double best = 1e9;
  for (double k = 0.03125; k < 5000; k *= 2) {
    best = std::min(best, Bigram(train, k).MeanLoss(rest));
  }
  EXPECT_LT(chosen, best + 0.005);
  EXPECT_LT(best, Bigram(train, 4096.0).MeanLoss(rest) - 0.05);
}

}  // namespace
}  // namespace llm
