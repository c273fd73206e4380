#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include "llm/chart.h"
#include "llm/escape.h"
#include "llm/format.h"
#include "llm/metrics.h"
#include "llm/progress.h"
#include "llm/report.h"

namespace llm {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string FreshFolder(const std::string& name) {
  const std::string path = testing::TempDir() + "llm_output_test_" + name;
  std::filesystem::remove_all(path);
  return path;
}

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

StepRecord Step(int64_t step) {
  return {.step = step,
          .loss = 2.0 + 1.0 / static_cast<double>(step),
          .gradient_norm = 0.831,
          .learning_rate = 1e-3,
          .samples = 12,
          .micro_batches = 3,
          .tokens = step * 3072,
          .tokens_per_second = 11234,
          .peak_bytes = int64_t{312} << 20,
          .seconds = 0.5 * static_cast<double>(step)};
}

TEST(FormatTest, NumbersHaveThreeDigitsAndAUnit) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(953), "953");
  EXPECT_EQ(FormatCount(999.7), "1.00k");
  EXPECT_EQ(FormatCount(11234), "11.2k");
  EXPECT_EQ(FormatCount(4404412), "4.40M");
  EXPECT_EQ(FormatCount(-2000), "-2.00k");
  EXPECT_EQ(FormatBytes(512), "512 B");
  EXPECT_EQ(FormatBytes(int64_t{312} << 20), "312 MiB");
  EXPECT_EQ(FormatBytes((int64_t{1} << 30) - 1), "1.00 GiB");
  EXPECT_EQ(FormatSeconds(59.4), "59s");
  EXPECT_EQ(FormatSeconds(59.6), "1m00s");
  EXPECT_EQ(FormatSeconds(92), "1m32s");
  EXPECT_EQ(FormatSeconds(7500), "2h05m");
  EXPECT_EQ(FormatSeconds(-1), "?");
  EXPECT_EQ(FormatNumber("%.2f", -kNan), "nan");
}

TEST(EscapeTest, JsonIsValidWhateverTheValue) {
  EXPECT_EQ(JsonNumber(0.1), "0.10000000000000001");
  EXPECT_EQ(JsonNumber(kNan), "null");
  EXPECT_EQ(JsonNumber(-INFINITY), "null");
  EXPECT_EQ(JsonString("a\"\\\n</script>"), "\"a\\\"\\\\\\u000a\\u003c/script>\"");
}

TEST(EscapeTest, BytesOutsideUtf8BecomeReplacementCharacters) {
  const std::string replaced = "\xEF\xBF\xBD";
  EXPECT_EQ(ValidUtf8("a\xC3\xA4z"), "a\xC3\xA4z");
  EXPECT_EQ(ValidUtf8("\xF0\x9F\x8C\x8D"), "\xF0\x9F\x8C\x8D");
  EXPECT_EQ(ValidUtf8("\xC3"), replaced);
  EXPECT_EQ(ValidUtf8("\xFF-"), replaced + "-");
  EXPECT_EQ(ValidUtf8("\xC0\x80"), replaced + replaced);                 // overlong
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80"), replaced + replaced + replaced);  // a surrogate
  EXPECT_EQ(HtmlText("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
}

TEST(MetricsTest, OneObjectAStepWithAllDigits) {
  const std::string out = FreshFolder("metrics") + "/below";
  absl::StatusOr<std::unique_ptr<MetricsWriter>> writer = MetricsWriter::Create(out);
  ASSERT_TRUE(writer.ok()) << writer.status();
  StepRecord second = Step(2);
  second.loss = kNan;
  second.validation_loss = 2.25;
  ASSERT_TRUE((*writer)->Write(Step(1)).ok());
  ASSERT_TRUE((*writer)->Write(second).ok());
  EXPECT_EQ(ReadAll(out + "/metrics.jsonl"),
            "{\"step\": 1, \"loss\": 3, \"gradient_norm\": 0.83099999999999996, "
            "\"learning_rate\": 0.001, \"samples\": 12, \"micro_batches\": 3, "
            "\"scaled_by\": \"window\", \"tokens\": 3072, \"tokens_per_second\": 11234, "
            "\"peak_bytes\": 327155712, \"seconds\": 0.5}\n"
            "{\"step\": 2, \"loss\": null, \"validation_loss\": 2.25, "
            "\"gradient_norm\": 0.83099999999999996, \"learning_rate\": 0.001, \"samples\": 12, "
            "\"micro_batches\": 3, \"scaled_by\": \"window\", \"tokens\": 6144, "
            "\"tokens_per_second\": 11234, \"peak_bytes\": 327155712, \"seconds\": 1}\n");
}

TEST(MetricsTest, MeasuresAreWrittenAndRead) {
  StepRecord step = Step(3);
  step.measures = {{"mrr", 0.5}, {"recall@1", 0.25}};
  const std::string line = MetricsLine(step);
  EXPECT_NE(line.find("\"held_out\": {\"mrr\": 0.5, \"recall@1\": 0.25}, \"gradient_norm\""),
            std::string::npos)
      << line;
  const absl::StatusOr<StepRecord> read = ParseMetricsLine(line);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->measures, step.measures);
  EXPECT_EQ(MetricsLine(*read), line);
  EXPECT_TRUE(ParseMetricsLine(MetricsLine(Step(3)))->measures.empty());
  // A chart of them stands in the report, and none without them.
  EXPECT_NE(ReportHtml({.steps = {step}, .unit = "pair"}).find("On held-out pairs"),
            std::string::npos);
  EXPECT_NE(ReportHtml({.steps = {Step(3)}, .before = StepRecord{.measures = {{"mrr", 0.1}}}})
                .find("On held-out"),
            std::string::npos);
  EXPECT_EQ(ReportHtml({.steps = {Step(3)}, .unit = "pair"}).find("On held-out"),
            std::string::npos);
}

TEST(MetricsTest, FolderThatHoldsARunIsLeftAsItIs) {
  for (const std::string name : {"metrics.jsonl", "report.html"}) {
    const std::string out = FreshFolder("held_" + name);
    std::filesystem::create_directories(out);
    std::ofstream(out + "/" + name) << "precious";
    const absl::Status status = MetricsWriter::Create(out).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
    EXPECT_EQ(status.message(),
              "--out " + out + " already holds a run (" + name +
                  "); name another folder, remove it, or go on with it by --resume");
    EXPECT_EQ(ReadAll(out + "/" + name), "precious");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(out), {}), 1);
  }
}

TEST(MetricsTest, LinkToAnotherPlaceIsNotWrittenThrough) {
  const std::string out = FreshFolder("link");
  std::filesystem::create_directories(out);
  std::filesystem::create_symlink(out + "/elsewhere", out + "/metrics.jsonl");
  EXPECT_FALSE(MetricsWriter::Create(out).ok());
  EXPECT_FALSE(std::filesystem::exists(out + "/elsewhere"));
}

TEST(MetricsTest, FileInTheWayIsNamed) {
  const std::string out = FreshFolder("in_the_way");
  std::ofstream{out} << "a file";
  const absl::Status status = MetricsWriter::Create(out).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(out), std::string::npos) << status;
  EXPECT_EQ(ReadAll(out), "a file");
}

TEST(ProgressTest, LineHasAllFigures) {
  StepRecord record = Step(120);
  record.validation_loss = 2.2;
  EXPECT_EQ(
      ProgressLine(record, 1500, 92),
      "step  120/1500  loss 2.0083  val 2.2000  11.2k tok/s  |g| 0.83  peak 312 MiB  left 1m32s");
}

std::string Shown(bool terminal, bool finish) {
  std::FILE* file = std::tmpfile();
  {
    Progress progress(file, terminal, 6, 4);
    for (int64_t step = 1; step <= (finish ? 6 : 5); ++step) {
      StepRecord record = Step(step);
      if (step == 3) record.validation_loss = 2.5;
      progress.Show(record);
    }
  }
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  std::fclose(file);
  return text;
}

TEST(ProgressTest, LogHoldsWholeLinesOfTheStepsThatStay) {
  const std::string text = Shown(false, true);
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_EQ(text.find('\033'), std::string::npos);
  EXPECT_EQ(Count(text, "\n"), 4);
  for (const char* step : {"step 1/6", "step 3/6", "step 4/6", "step 6/6"}) {
    EXPECT_EQ(Count(text, step), 1) << step;
  }
  EXPECT_EQ(Count(text, "left 2s"), 1);  // step 3 of 6 at half a second each, and 1.5 rounds up
}

TEST(ProgressTest, TerminalShowsEveryStepAndEndsItsLastLine) {
  const std::string text = Shown(true, false);
  EXPECT_EQ(Count(text, "\r"), 5);
  EXPECT_EQ(Count(text, "\n"), 4);
  EXPECT_EQ(text.back(), '\n');
}

TEST(ChartTest, TicksAreRoundAndInside) {
  EXPECT_EQ(Ticks(0, 10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(Ticks(0.9, 6.1, 5), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(Ticks(1, 1200, 4), (std::vector<double>{200, 400, 600, 800, 1000, 1200}));
}

TEST(ChartTest, PointsLieWhereTheAxesSay) {
  const Chart chart{.title = "t",
                    .x_title = "x",
                    .y_title = "y",
                    .series = {{"s", ChartSeries::Kind::kLine, 1, {0, 10}, {0, 100}}},
                    .from_zero = true};
  // 1000 wide and 248 high leave 934 x 200; the y axis ends 6 % above the highest point.
  const std::string html = ChartHtml(chart, 1000, 248);
  EXPECT_NE(html.find("points=\"52.0,208.0 986.0,19.3 \""), std::string::npos) << html;
}

Report SmallReport(int64_t steps) {
  Report report;
  report.title = "Run";
  report.headlines = {{"Validation loss", "1.41", "nats"}};
  report.sections = {{"Model", {{"Parameters", "822,400"}}}};
  report.bigram_loss = 2.4;
  report.memory = {{"activation", 100}, {"unsharded", 25}};
  report.sample = "x </pre><script>alert(1)</script> \xFF";
  for (int64_t step = 1; step <= steps; ++step) report.steps.push_back(Step(step));
  return report;
}

TEST(ReportTest, LoadsNothingAndEscapesText) {
  const std::string html = ReportHtml(SmallReport(50));
  for (const char* link : {"http", "src=", "href=", "url(", "@import", "fetch("}) {
    EXPECT_EQ(html.find(link), std::string::npos) << link;
  }
  EXPECT_EQ(Count(html, "<script>"), 1);
  EXPECT_NE(html.find("x &lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt; \xEF\xBF\xBD"),
            std::string::npos);
  EXPECT_NE(html.find("byte bigram 2.400"), std::string::npos);
  EXPECT_NE(html.find("width: 25.0%"), std::string::npos);
  EXPECT_EQ(Count(html, "<svg"), 10);
  EXPECT_EQ(Count(html, "</svg>"), 10);
}

TEST(ReportTest, LongRunsStaySmall) { EXPECT_LT(ReportHtml(SmallReport(100000)).size(), 300000u); }

TEST(ReportTest, FiguresThatAreNotFiniteAreLeftOut) {
  Report report = SmallReport(3);
  report.steps[0].loss = kNan;
  report.steps[1].gradient_norm = INFINITY;
  report.bigram_loss = kNan;
  const std::string html = ReportHtml(report);
  EXPECT_EQ(html.find("nan,"), std::string::npos);
  EXPECT_EQ(html.find("inf"), std::string::npos);
  EXPECT_EQ(html.find("y1=nan"), std::string::npos);
}

TEST(ReportTest, RunsOfNoneOrOneStepHavePlots) {
  for (const int64_t steps : {0, 1}) {
    const std::string html = ReportHtml(SmallReport(steps));
    EXPECT_EQ(html.find("nan"), std::string::npos);
    EXPECT_EQ(Count(html, "</svg>"), 10);
  }
}

TEST(ReportTest, WritesTheFileOrSaysWhyNot) {
  const std::string out = FreshFolder("report");
  std::filesystem::create_directories(out);
  ASSERT_TRUE(WriteReport(out + "/report.html", SmallReport(2)).ok());
  EXPECT_EQ(ReadAll(out + "/report.html"), ReportHtml(SmallReport(2)));
  EXPECT_FALSE(std::filesystem::exists(out + "/report.html.tmp"));
  const absl::Status status = WriteReport(out + "/none/report.html", SmallReport(2));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("No such file"), std::string::npos) << status;
}

}  // namespace
}  // namespace llm
