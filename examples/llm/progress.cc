#include "llm/progress.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "llm/format.h"

namespace llm {

std::string ProgressLine(const StepRecord& r, int64_t total_steps, double seconds_left) {
  const int width = static_cast<int>(std::to_string(total_steps).size());
  std::string line = absl::StrFormat("step %*d/%d  loss %s", width, r.step, total_steps,
                                     FormatNumber("%.4f", r.loss));
  if (r.validation_loss) absl::StrAppend(&line, "  val ", FormatNumber("%.4f", *r.validation_loss));
  absl::StrAppend(&line, "  ", FormatCount(r.tokens_per_second), " tok/s  |g| ",
                  FormatNumber("%.2f", r.gradient_norm), "  peak ", FormatBytes(r.peak_bytes),
                  "  left ", FormatSeconds(seconds_left));
  return line;
}

Progress::Progress(std::FILE* file, bool terminal, int64_t total_steps, int64_t log_every)
    : file_(file), terminal_(terminal), total_steps_(total_steps), log_every_(log_every) {}

Progress::~Progress() {
  if (line_open_) std::fputc('\n', file_);
}

void Progress::Show(const StepRecord& record) {
  const bool stays = record.step == 1 || record.step == total_steps_ ||
                     record.step % log_every_ == 0 || record.validation_loss.has_value();
  if (!stays && !terminal_) return;
  // The mean over all steps so far, so that pauses for validation are part of the estimate.
  const double per_step = record.seconds / static_cast<double>(std::max<int64_t>(record.step, 1));
  const double left = per_step * static_cast<double>(total_steps_ - record.step);
  const std::string line = ProgressLine(record, total_steps_, left);
  if (terminal_) std::fputs("\r\033[K", file_);
  std::fputs(line.c_str(), file_);
  if (stays) std::fputc('\n', file_);
  line_open_ = !stays;
  std::fflush(file_);
}

}  // namespace llm
