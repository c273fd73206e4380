#include "llm/run_output.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

namespace llm {

absl::Status RunOutput::Open(const Options& o, const sherd::LaunchInfo& launch) {
  absl::StatusOr<std::unique_ptr<MetricsWriter>> metrics =
      o.resume ? MetricsWriter::Resume(o.out, o.from, steps_) : MetricsWriter::Create(o.out);
  if (!metrics.ok()) return metrics.status();
  metrics_ = *std::move(metrics);
  // MPI's launchers give ranks a terminal of their own even when they write to a file themselves.
  const bool direct =
      launch.launcher == sherd::Launcher::kNone || launch.launcher == sherd::Launcher::kTorchrun;
  progress_.emplace(stdout, direct && isatty(STDOUT_FILENO) == 1, o.steps, o.log_every);
  return absl::OkStatus();
}

absl::Status RunOutput::Add(const StepRecord& record) {
  steps_.push_back(record);
  progress_->Show(record);
  return metrics_->Write(record);
}

absl::StatusOr<std::vector<StepRecord>> RunOutput::Close() {
  progress_.reset();
  if (absl::Status settled = metrics_->Settle(); !settled.ok()) return settled;
  return std::move(steps_);
}

}  // namespace llm
