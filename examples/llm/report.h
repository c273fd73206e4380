#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "llm/step_record.h"
#include "sherd/runtime/comm/launch.h"

namespace llm {

// What report.html shows of a finished run.
struct Report {
  using Facts = std::vector<std::pair<std::string, std::string>>;  // names and what they are
  // A figure at the top of the page.
  struct Headline {
    std::string label;
    std::string value;
    std::string note;
  };
  // A table of facts under one heading.
  struct Section {
    std::string heading;
    Facts facts;
  };
  std::string title;
  std::string subtitle;
  std::vector<Headline> headlines;
  std::vector<Section> sections;
  std::vector<StepRecord> steps;
  std::optional<StepRecord> before;   // what was measured before the first step, as a step 0
  std::string unit = "byte";          // what a loss is the mean over
  std::optional<double> bigram_loss;  // nats, on the same validation; of bytes
  std::vector<std::pair<std::string, int64_t>> memory;  // peak bytes by category
  std::string prompt;                                   // what the sample begins with
  std::string sample;                                   // bytes; shown as UTF-8 where they are
};

// "2 ranks x 1 thread".
std::string RanksAndThreads(const sherd::LaunchInfo& launch, int64_t threads);

// What is to be said of any run: its ranks, who started them, and what they keep in memory.
Report::Facts FactsOfRun(const sherd::LaunchInfo& launch, int64_t threads, bool checkpoint,
                         bool reshard);

// What was trained on in a second, which is `total` of all steps, without what was done between
// them. REQUIRES: one step at least.
double PerSecond(double total, const std::vector<StepRecord>& steps);

// The page: one file with its styles, plots and script inside; it loads nothing from anywhere.
std::string ReportHtml(const Report& report);

// Writes the page to `path` by a temporary file beside it, so that no half page is ever there.
// Errors: kDataLoss with the system's reason.
absl::Status WriteReport(const std::string& path, const Report& report);

}  // namespace llm
