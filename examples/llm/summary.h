#pragma once

#include <string>
#include <vector>

#include "llm/options.h"
#include "llm/report.h"
#include "llm/step_record.h"
#include "llm/text_data.h"
#include "llm/training.h"
#include "sherd/runtime/comm/launch.h"

namespace llm {

// One line that says what is about to run: model, ranks, text, batch.
std::string Announcement(const Options& options, const sherd::LaunchInfo& launch,
                         const TextData& text);

// The contents of report.html.
Report MakeReport(const Options& options, const sherd::LaunchInfo& launch, const TextData& text,
                  const TrainingResult& result, std::vector<StepRecord> steps, double bigram_loss);

}  // namespace llm
