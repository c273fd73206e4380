#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "llm/step_record.h"

namespace llm {

// Writes metrics.jsonl: one JSON object a line for every step, readable while the run goes on.
//
// Each line is handed to the system whole, so a run that is killed leaves every finished step.
class MetricsWriter {
 public:
  // Makes the folder `out` with its parents if need be, and a new metrics.jsonl in it.
  // Errors: kAlreadyExists when the folder holds metrics.jsonl or report.html of another run, which
  //   stay as they are; kInvalidArgument, kPermissionDenied, ... when the folder cannot be made or
  //   written.
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> Create(const std::string& out);
  // Goes on with the folder's metrics.jsonl after the lines of steps 1 to `step`, which come back
  // in `kept`; what follows them, of a run that went further than it saved, is dropped by the first
  // Write or by Settle, and so is a report. Without such a file: as Create.
  // Errors: those of Create; kDataLoss naming file and line if lines up to `step` are missing or no
  //   records, with nothing changed.
  static absl::StatusOr<std::unique_ptr<MetricsWriter>> Resume(const std::string& out, int64_t step,
                                                               std::vector<StepRecord>& kept);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  // Appends one line. Errors: kDataLoss with the system's reason, such as a full disk; those of
  // Settle.
  absl::Status Write(const StepRecord& record);
  // Drops what Resume says, if that was not done. Errors: those of NewFile; kPermissionDenied.
  absl::Status Settle();

  const std::string& path() const { return path_; }

 private:
  MetricsWriter(std::string path, int file) : path_(std::move(path)), file_(file) {}

  std::string path_;
  int file_;                         // -1 before Settle
  std::optional<std::string> kept_;  // the lines that stay, before Settle
};

// The line of one step, without its end.
std::string MetricsLine(const StepRecord& record);
// The reverse. Errors: kInvalidArgument saying what is missing or no number.
absl::StatusOr<StepRecord> ParseMetricsLine(std::string_view line);

}  // namespace llm
