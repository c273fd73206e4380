#include "llm/report.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "llm/chart.h"
#include "llm/escape.h"
#include "llm/format.h"
#include "llm/report_style.h"

namespace llm {
namespace {

using Kind = ChartSeries::Kind;

ChartSeries Collect(const Report& report, std::string name, int colour,
                    double (*value)(const StepRecord&)) {
  ChartSeries series{std::move(name), Kind::kLine, colour, {}, {}};
  for (const StepRecord& step : report.steps) {
    series.x.push_back(static_cast<double>(step.step));
    series.y.push_back(value(step));
  }
  return series;
}

// The steps, and what was measured before them.
std::vector<StepRecord> Measured(const Report& report) {
  std::vector<StepRecord> steps;
  if (report.before) steps.push_back(*report.before);
  steps.insert(steps.end(), report.steps.begin(), report.steps.end());
  return steps;
}

Chart LossChart(const Report& report) {
  ChartSeries validation{"validation", Kind::kMarkers, 2, {}, {}};
  for (const StepRecord& step : Measured(report)) {
    if (!step.validation_loss) continue;
    validation.x.push_back(static_cast<double>(step.step));
    validation.y.push_back(*step.validation_loss);
  }
  Chart chart{"Loss", "step", "nats per " + report.unit};
  if (report.bigram_loss) {
    chart.series.push_back({absl::StrFormat("byte bigram %.3f", *report.bigram_loss),
                            Kind::kReference,
                            3,
                            {},
                            {*report.bigram_loss}});
  }
  chart.series.push_back(
      Collect(report, "training", 1, [](const StepRecord& s) { return s.loss; }));
  chart.series.push_back(std::move(validation));
  return chart;
}

// The measures by name, if there are any.
std::optional<Chart> MeasureChart(const Report& report) {
  std::map<std::string, ChartSeries> series;
  for (const StepRecord& step : Measured(report)) {
    for (const auto& [name, value] : step.measures) {
      const int colour = static_cast<int>(series.size()) % 3 + 1;
      ChartSeries& of =
          series.try_emplace(name, ChartSeries{name, Kind::kMarkers, colour, {}, {}}).first->second;
      of.x.push_back(static_cast<double>(step.step));
      of.y.push_back(value);
    }
  }
  if (series.empty()) return std::nullopt;
  Chart chart{"On held-out " + report.unit + "s", "step", "from 0 to 1"};
  chart.from_zero = true;
  for (auto& [name, of] : series) chart.series.push_back(std::move(of));
  return chart;
}

Chart ThroughputChart(const Report& report) {
  return {"Throughput",
          "step",
          "tokens per second",
          {Collect(report, "tokens/s", 1, [](const StepRecord& s) { return s.tokens_per_second; })},
          true};
}

Chart MemoryChart(const Report& report) {
  return {
      "Peak memory",
      "step",
      "MiB, the fullest rank so far",
      {Collect(report, "MiB", 1,
               [](const StepRecord& s) { return static_cast<double>(s.peak_bytes) / (1 << 20); })},
      true};
}

Chart GradientChart(const Report& report) {
  return {"Gradient norm",
          "step",
          "before clipping",
          {Collect(report, "norm", 1, [](const StepRecord& s) { return s.gradient_norm; })},
          true};
}

Chart LearningRateChart(const Report& report) {
  return {"Learning rate",
          "step",
          "",
          {Collect(report, "rate", 1, [](const StepRecord& s) { return s.learning_rate; })},
          true};
}

void AppendSections(const Report& report, std::string& html) {
  absl::StrAppend(&html, "<div class=sections>\n");
  for (const Report::Section& section : report.sections) {
    absl::StrAppend(&html, "<section><h2>", HtmlText(section.heading), "</h2><table>");
    for (const auto& [label, value] : section.facts) {
      absl::StrAppend(&html, "<tr><td>", HtmlText(label), "</td><td>", HtmlText(value),
                      "</td></tr>");
    }
    absl::StrAppend(&html, "</table></section>\n");
  }
  if (!report.memory.empty()) {
    int64_t most = 1;
    for (const auto& [label, bytes] : report.memory) most = std::max(most, bytes);
    absl::StrAppend(&html, "<section><h2>Peak memory by category</h2><table>");
    for (const auto& [label, bytes] : report.memory) {
      absl::StrAppendFormat(
          &html, "<tr><td>%s<div class=bar style=\"width: %.1f%%\"></div></td><td>%s</td></tr>",
          HtmlText(label), 100.0 * static_cast<double>(bytes) / static_cast<double>(most),
          FormatBytes(bytes));
    }
    absl::StrAppend(
        &html,
        "</table><p class=hint>Each category at its own highest point, on rank 0.</p></section>\n");
  }
  absl::StrAppend(&html, "</div>\n");
}

}  // namespace

std::string ReportHtml(const Report& report) {
  std::string html = absl::StrCat(
      "<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n"
      "<meta name=viewport content=\"width=device-width, initial-scale=1\">\n<title>",
      HtmlText(report.title), "</title>\n<style>", kReportStyle, "</style>\n<h1>",
      HtmlText(report.title), "</h1>\n<p class=subtitle>", HtmlText(report.subtitle),
      "</p>\n<div class=headlines>\n");
  for (const Report::Headline& h : report.headlines) {
    absl::StrAppend(&html, "<div class=card><span class=label>", HtmlText(h.label),
                    "</span><span class=value>", HtmlText(h.value), "</span><span class=note>",
                    HtmlText(h.note), "</span></div>\n");
  }
  absl::StrAppend(&html, "</div>\n", ChartHtml(LossChart(report), 940, 340));
  if (const std::optional<Chart> measures = MeasureChart(report)) {
    absl::StrAppend(&html, ChartHtml(*measures, 940, 300));
  }
  absl::StrAppend(&html, "<div class=plots>\n");
  for (const Chart& chart : {ThroughputChart(report), MemoryChart(report), GradientChart(report),
                             LearningRateChart(report)}) {
    absl::StrAppend(&html, ChartHtml(chart, 450, 230));
  }
  absl::StrAppend(&html, "</div>\n");
  AppendSections(report, html);
  if (!report.sample.empty()) {
    const std::string prompt = report.prompt == "\n" ? "" : report.prompt;
    absl::StrAppend(&html, "<section class=sample><h2>Text from the trained model</h2><pre><b>",
                    HtmlText(prompt), "</b>", HtmlText(report.sample), "</pre></section>\n");
  }
  absl::StrAppend(&html, "<script>", kReportScript, "</script>\n</html>\n");
  return html;
}

std::string RanksAndThreads(const sherd::LaunchInfo& launch, int64_t threads) {
  return absl::StrCat(Counted(launch.size, "rank"), " x ", Counted(threads, "thread"));
}

Report::Facts FactsOfRun(const sherd::LaunchInfo& launch, int64_t threads, bool checkpoint,
                         bool reshard) {
  return {{"Ranks", RanksAndThreads(launch, threads)},
          {"Started by", launch.launcher == sherd::Launcher::kNone
                             ? std::string("hand, as one process")
                             : std::string(sherd::NameOf(launch.launcher))},
          {"Checkpointing", OnOff(checkpoint)},
          {"Reshard after forward", OnOff(reshard)}};
}

double PerSecond(double total, const std::vector<StepRecord>& steps) {
  double seconds = 0.0;
  int64_t before = 0;
  for (const StepRecord& step : steps) {
    seconds += static_cast<double>(step.tokens - before) / step.tokens_per_second;
    before = step.tokens;
  }
  return total / seconds;
}

absl::Status WriteReport(const std::string& path, const Report& report) {
  const std::string temporary = path + ".tmp";
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << ReportHtml(report);
  file.close();
  if (file.fail() || std::rename(temporary.c_str(), path.c_str()) != 0) {
    absl::Status status = absl::DataLossError(
        absl::StrCat("report ", path, " cannot be written: ", std::strerror(errno)));
    std::remove(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace llm
