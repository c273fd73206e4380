#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <set>
#include <string_view>

#include "llm/bigram.h"
#include "llm/sample_order.h"
#include "llm/text_data.h"

namespace llm {
namespace {

std::vector<uint8_t> Bytes(std::string_view text) { return {text.begin(), text.end()}; }

std::string WriteTemporary(const std::string& name, std::string_view text) {
  const std::string path = testing::TempDir() + "llm_data_test_" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(TextDataTest, JoinsFilesInOrderAndHoldsOutTheEnd) {
  const std::string first = WriteTemporary("first", std::string(60, 'a'));
  const std::string second = WriteTemporary("second", std::string(40, 'b'));
  const absl::StatusOr<TextData> data = ReadText({first, second}, 4);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train, Bytes(std::string(60, 'a') + std::string(35, 'b')));
  EXPECT_EQ(data->validation, Bytes(std::string(5, 'b')));
}

TEST(TextDataTest, ValidationHoldsAtLeastOneWindow) {
  const absl::StatusOr<TextData> data = SplitText(Bytes("0123456789"), 3);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train, Bytes("012345"));
  EXPECT_EQ(data->validation, Bytes("6789"));
}

TEST(TextDataTest, ShortTextNamesBothNumbers) {
  const absl::Status status = SplitText(Bytes("0123456"), 3).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "the text has 7 bytes, but --seq 3 needs at least 8: one window of 4 bytes to learn and "
      "one to measure");
}

TEST(TextDataTest, BadFilesAreNamed) {
  const std::string missing = testing::TempDir() + "llm_data_test_no_such_file";
  absl::Status status = ReadText({missing}, 4).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(status.message().find(missing), std::string::npos) << status;

  const std::string empty = WriteTemporary("empty", "");
  status = ReadText({empty}, 4).status();
  EXPECT_EQ(status.message(), "text file " + empty + " is empty");

  status = ReadText({testing::TempDir()}, 4).status();
  EXPECT_EQ(status.message(), "text file " + testing::TempDir() + " is a folder");
}

TEST(TextDataTest, ValidationWindowsLieSideBySideOrSpreadEvenly) {
  EXPECT_EQ(ValidationWindows(13, 4, 100), (std::vector<int64_t>{0, 4, 8}));
  EXPECT_EQ(ValidationWindows(12, 4, 100), (std::vector<int64_t>{0, 4}));
  EXPECT_EQ(ValidationWindows(41, 4, 5), (std::vector<int64_t>{0, 8, 16, 24, 32}));
}

TEST(TextDataTest, TargetsAreTheNextBytes) {
  std::vector<int64_t> inputs(3), targets(3);
  CopyWindow(Bytes("abcdef"), 1, inputs, targets);
  EXPECT_EQ(inputs, (std::vector<int64_t>{'b', 'c', 'd'}));
  EXPECT_EQ(targets, (std::vector<int64_t>{'c', 'd', 'e'}));
}

TEST(PermutationTest, IsABijectionOfAnySize) {
  for (const int64_t size : {1, 2, 3, 4, 5, 16, 17, 1000}) {
    const Permutation permutation(size, 42);
    std::set<int64_t> images;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t image = permutation(i);
      EXPECT_GE(image, 0);
      EXPECT_LT(image, size);
      images.insert(image);
    }
    EXPECT_EQ(static_cast<int64_t>(images.size()), size);
  }
}

TEST(PermutationTest, DependsOnTheKey) {
  const Permutation a(1000, 1), b(1000, 2);
  int equal = 0;
  for (int64_t i = 0; i < 1000; ++i) equal += a(i) == b(i);
  EXPECT_LT(equal, 20);  // one is expected of two random orders
}

TEST(SampleOrderTest, EpochVisitsEveryWindowOnceInsideTheText) {
  constexpr int64_t kBytes = 1003, kSeq = 10;
  const SampleOrder order(kBytes, kSeq, 7);
  ASSERT_EQ(order.windows(), 99);
  std::set<int64_t> first_starts;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    std::set<int64_t> starts;
    for (int64_t i = 0; i < order.windows(); ++i) {
      const int64_t start = order.Start(epoch * order.windows() + i);
      EXPECT_GE(start, 0);
      EXPECT_LE(start + kSeq + 1, kBytes);
      starts.insert(start);
    }
    ASSERT_EQ(static_cast<int64_t>(starts.size()), order.windows());
    EXPECT_EQ(*starts.rbegin() - *starts.begin(), (order.windows() - 1) * kSeq);
    first_starts.insert(*starts.begin());
  }
  EXPECT_GT(first_starts.size(), 1u) << "every epoch cuts the text in the same places";
}

TEST(SampleOrderTest, EpochsAndSeedsDiffer) {
  const SampleOrder order(10000, 10, 7), other(10000, 10, 8);
  int epochs_equal = 0, seeds_equal = 0;
  for (int64_t i = 0; i < order.windows(); ++i) {
    epochs_equal += order.Start(i) == order.Start(i + order.windows());
    seeds_equal += order.Start(i) == other.Start(i);
  }
  EXPECT_LT(epochs_equal, 20);
  EXPECT_LT(seeds_equal, 20);
}

TEST(SampleOrderTest, ShortestTextHasOneWindow) {
  const SampleOrder order(5, 4, 1);
  EXPECT_EQ(order.windows(), 1);
  for (int64_t i = 0; i < 10; ++i) EXPECT_EQ(order.Start(i), 0);
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

TEST(BigramTest, MeanLossCountsOnlyPredictedBytesOfTheWindows) {
  const Bigram model(Bytes("abaab"), 2.0);
  const std::vector<int64_t> starts = {1, 4};
  const double expected =
      -(std::log(model.Probability('b', 'c')) + std::log(model.Probability('c', 'd')) +
        std::log(model.Probability('e', 'f')) + std::log(model.Probability('f', 'g'))) /
      4;
  EXPECT_NEAR(model.MeanLoss(Bytes("abcdefgh"), starts, 2), expected, 1e-12);
}

TEST(BigramTest, ChosenStrengthIsNearTheBestOnHeldOutText) {
  // Words of four letters in a fixed random order, so that counts are sparse.
  std::vector<uint8_t> text;
  const Permutation permutation(20000, 3);
  for (int64_t i = 0; i < 4000; ++i) {
    const int64_t word = permutation(i) % 300;
    for (const int64_t part : {word % 7, word % 11, word % 13, word % 17}) {
      text.push_back(static_cast<uint8_t>('a' + part));
    }
    text.push_back(' ');
  }
  const std::span<const uint8_t> train(text.data(), 16000), rest(text.data() + 16000, 4000);
  const std::vector<int64_t> start = {0};
  const double chosen = Bigram(train).MeanLoss(rest, start, 3999);
  double best = 1e9;
  for (double k = 0.03125; k < 5000; k *= 2) {
    best = std::min(best, Bigram(train, k).MeanLoss(rest, start, 3999));
  }
  EXPECT_LT(chosen, best + 0.005);
  EXPECT_LT(best, Bigram(train, 4096.0).MeanLoss(rest, start, 3999) - 0.05);
}

}  // namespace
}  // namespace llm
