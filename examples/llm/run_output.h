#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "llm/metrics.h"
#include "llm/progress.h"
#include "llm/step_record.h"
#include "sherd/runtime/comm/launch.h"

namespace llm {

// What rank 0 shows and writes while a run goes on; the other ranks do neither.
class RunOutput {
 public:
  struct Options {
    std::string out;         // the folder of metrics.jsonl
    int64_t steps = 0;       // of the whole run
    int64_t log_every = 10;  // steps between lines
    bool resume = false;
    int64_t from = 0;  // the step of the state it goes on from
  };

  // Makes the folder and metrics.jsonl, or goes on with those of a run that saved step `from`.
  // Errors: as MetricsWriter.
  absl::Status Open(const Options& options, const sherd::LaunchInfo& launch);
  // Of a run that goes on: the last step that it keeps.
  StepRecord last() const { return steps_.empty() ? StepRecord() : steps_.back(); }
  // Shows and writes a step. Errors: as MetricsWriter. REQUIRES: Open succeeded.
  absl::Status Add(const StepRecord& record);
  // Ends the lines of progress, and gives all steps away. Errors: those of MetricsWriter::Settle.
  absl::StatusOr<std::vector<StepRecord>> Close();

 private:
  std::unique_ptr<MetricsWriter> metrics_;
  std::optional<Progress> progress_;
  std::vector<StepRecord> steps_;
};

}  // namespace llm
