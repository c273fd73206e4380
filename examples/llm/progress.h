#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "llm/step_record.h"

namespace llm {

// One line about a step:
//   step  120/1500  loss 2.1034  val 2.2011  11.2k tok/s  |g| 0.83  peak 312 MiB  left 1m32s
// `seconds_left` may be negative for unknown. No line end.
std::string ProgressLine(const StepRecord& record, int64_t total_steps, double seconds_left);

// Shows a run's progress on a screen or in a log file.
//
// On a terminal every step rewrites one line, and every `log_every` steps that line stays.
// Elsewhere only the lines that stay are written, so a log holds no control characters. The first
// and the last step and every validation always stay.
class Progress {
 public:
  // Ownership: `file` outlives this object.
  Progress(std::FILE* file, bool terminal, int64_t total_steps, int64_t log_every);
  // Ends a line that would be rewritten, so that what follows starts on a new one.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Show(const StepRecord& record);

 private:
  std::FILE* file_;
  bool terminal_;
  int64_t total_steps_;
  int64_t log_every_;
  bool line_open_ = false;
};

}  // namespace llm
