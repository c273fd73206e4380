#pragma once

#include <string>
#include <vector>

#include "contrastive/encoder.h"
#include "contrastive/options.h"
#include "contrastive/training.h"
#include "llm/report.h"
#include "llm/step_record.h"
#include "sherd/runtime/comm/launch.h"

namespace contrastive {

// One line that says what is about to run: encoder, ranks, batch, data.
std::string Announcement(const Options& options, const sherd::LaunchInfo& launch,
                         const Encoder& encoder, const Data& pairs, const Data& held_out);

// The last lines of a run: held-out pairs before and after.
std::string ResultText(const TrainingResult& result);

// The contents of report.html.
llm::Report MakeReport(const Options& options, const sherd::LaunchInfo& launch,
                       const Encoder& encoder, const Data& pairs, const Data& held_out,
                       const TrainingResult& result, std::vector<llm::StepRecord> steps);

}  // namespace contrastive
