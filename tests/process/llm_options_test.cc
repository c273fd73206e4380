#include "llm/options.h"

#include <gtest/gtest.h>

#include <vector>

namespace llm {
namespace {

// Parses `words` behind the two flags that every run needs.
absl::StatusOr<Options> Parse(std::vector<const char*> words) {
  words.insert(words.begin(), {"--data", "text", "--out", "run"});
  return ParseOptions(words);
}

std::string ErrorOf(std::vector<const char*> words) {
  const absl::StatusOr<Options> options = Parse(std::move(words));
  EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(options.status().message());
}

TEST(OptionsTest, ReadsValuesAfterASpaceOrAnEqualsSign) {
  const absl::StatusOr<Options> options =
      Parse({"--steps", "7", "--lr=0.5", "--untied", "--checkpoint", "off", "--dtype=f64", "--seed",
             "18446744073709551615", "--micro-batches", "3", "--timeout", "5m", "--prompt=--x"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->steps, 7);
  EXPECT_EQ(options->lr, 0.5);
  EXPECT_FALSE(options->tied);
  EXPECT_FALSE(options->checkpoint);
  EXPECT_TRUE(options->reshard);
  EXPECT_TRUE(options->f64);
  EXPECT_EQ(options->seed, 18446744073709551615u);
  EXPECT_EQ(options->micro_batches, 3);
  EXPECT_EQ(options->timeout, absl::Minutes(5));
  EXPECT_EQ(options->prompt, "--x");
}

TEST(OptionsTest, DataTakesAllWordsUpToTheNextFlagAndRepeats) {
  const std::vector<const char*> words = {"--data", "a", "b", "--out", "run", "--data", "c"};
  const absl::StatusOr<Options> options = ParseOptions(words);
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->data, (std::vector<std::string>{"a", "b", "c"}));
}

TEST(OptionsTest, ScheduleDefaultsFollowStepsAndRate) {
  const absl::StatusOr<Options> options = Parse({"--steps", "20", "--lr", "0.0001"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->warmup, 2);
  EXPECT_DOUBLE_EQ(options->min_lr, 0.00001);
}

TEST(OptionsTest, UnknownFlagIsNamedWithTheNearestOne) {
  EXPECT_EQ(ErrorOf({"--bacth", "3"}),
            "unknown flag --bacth; did you mean --batch? --help lists all flags");
  EXPECT_NE(ErrorOf({"--micro=3"}).find("--micro;"), std::string::npos);
}

TEST(OptionsTest, BadValuesNameTheFlagAndWhatItTakes) {
  EXPECT_EQ(ErrorOf({"--steps", "0"}), "--steps takes an integer of at least 1, not '0'");
  EXPECT_EQ(ErrorOf({"--steps", "10x"}), "--steps takes an integer of at least 1, not '10x'");
  EXPECT_EQ(ErrorOf({"--steps", "99999999999999999999"}),
            "--steps takes an integer of at least 1, not '99999999999999999999'");
  EXPECT_EQ(ErrorOf({"--dropout", "1"}),
            "--dropout takes a number of at least 0 and below 1, not '1'");
  EXPECT_EQ(ErrorOf({"--lr", "0"}), "--lr takes a number above 0, not '0'");
  EXPECT_EQ(ErrorOf({"--lr", "nan"}), "--lr takes a number above 0, not 'nan'");
  EXPECT_EQ(ErrorOf({"--dtype", "f16"}), "--dtype takes f64 or f32, not 'f16'");
  EXPECT_EQ(ErrorOf({"--timeout", "soon"}),
            "--timeout takes a duration such as 90, 90s or 5m, not 'soon'");
  EXPECT_EQ(ErrorOf({"--seed=-1"}), "--seed takes an integer from 0 to 2^64 - 1, not '-1'");
}

TEST(OptionsTest, MisplacedWordsAreErrors) {
  EXPECT_EQ(ErrorOf({"--steps"}), "--steps needs a value: N");
  EXPECT_EQ(ErrorOf({"--steps", "--lr", "1"}), "--steps needs a value: N");
  EXPECT_EQ(ErrorOf({"--steps", "1", "2"}), "'2' belongs to no flag; files follow --data");
  EXPECT_EQ(ErrorOf({"--tied=yes"}), "--tied takes no value");
  EXPECT_EQ(ErrorOf({"--steps", "1", "--steps", "2"}), "--steps is given twice");
  EXPECT_EQ(ErrorOf({"--tied", "--untied"}), "--tied and --untied exclude each other");
}

TEST(OptionsTest, SizesMustGoTogether) {
  EXPECT_EQ(ErrorOf({"--dim", "100", "--heads", "3"}), "--dim 100 is not divisible by --heads 3");
  EXPECT_EQ(ErrorOf({"--dim", "6", "--heads", "2"}),
            "--dim 6 over --heads 2 gives heads of size 3; rotary positions need an even size");
  EXPECT_EQ(ErrorOf({"--heads", "8", "--kv_heads", "3"}),
            "--heads 8 is not divisible by --kv_heads 3");
  EXPECT_EQ(ErrorOf({"--lr", "1", "--min_lr", "2"}), "--min_lr 2 is above --lr 1");
  EXPECT_EQ(ErrorOf({"--seq", "64", "--token_budget", "63"}),
            "--token_budget 63 is below --seq 64, and a row may have that many tokens");
  EXPECT_EQ(ErrorOf({"--micro_batches", "2", "--token_budget", "1000"}),
            "--micro_batches and --token_budget exclude each other");
  EXPECT_EQ(ErrorOf({"--steps", "5", "--warmup", "6"}), "--warmup 6 is longer than --steps 5");
}

TEST(OptionsTest, DataAndOutAreNeeded) {
  EXPECT_EQ(ParseOptions(std::vector<const char*>{"--out", "run"}).status().message(),
            "--data is missing: name at least one file");
  EXPECT_EQ(ParseOptions(std::vector<const char*>{"--data", "text"}).status().message(),
            "--out is missing: name a folder for the results");
}

TEST(OptionsTest, HelpNeedsNothingElseAndShowsDefaults) {
  const absl::StatusOr<Options> options = ParseOptions(std::vector<const char*>{"--help"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_TRUE(options->help);
  const std::string help = HelpText("train");
  EXPECT_NE(help.find("--batch N"), std::string::npos);
  EXPECT_NE(help.find("samples a step, over all ranks and micro-batches [12]"), std::string::npos);
}

TEST(OptionsTest, InnerWidthDefaultsToEightThirds) {
  Options options;
  options.dim = 128;
  EXPECT_EQ(options.ffn_size(), 352);
  options.ffn = 100;
  EXPECT_EQ(options.ffn_size(), 100);
}

}  // namespace
}  // namespace llm
