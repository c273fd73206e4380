#pragma once

#include <optional>
#include <string>
#include <vector>

#include "llm/dataset.h"
#include "llm/options.h"
#include "llm/report.h"
#include "llm/step_record.h"
#include "llm/training.h"
#include "sherd/runtime/comm/launch.h"

namespace llm {

// One line that says what is about to run: model, ranks, effective batch, data.
std::string Announcement(const Options& options, const sherd::LaunchInfo& launch,
                         const Dataset& dataset);

// The contents of report.html; `bigram_loss` of data whose tokens are bytes.
Report MakeReport(const Options& options, const sherd::LaunchInfo& launch, const Dataset& dataset,
                  const TrainingResult& result, std::vector<StepRecord> steps,
                  std::optional<double> bigram_loss);

}  // namespace llm
