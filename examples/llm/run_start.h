#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "llm/run_output.h"
#include "llm/step_record.h"
#include "sherd/runtime/comm/launch.h"
#include "sherd/runtime/comm/world.h"

namespace llm {

// What a run asks of its surroundings.
struct TrainingHooks {
  // Called on this rank after each step, if it is set; its error ends the run on all ranks.
  std::function<absl::Status(const StepRecord&)> on_step;
  // Whether this rank was asked to save and end, which all do after the step; may be empty.
  std::function<bool()> stop_asked;
  // The last record of the run that goes on: where tokens and seconds continue. Of the rank that
  // has on_step.
  StepRecord last;
  // The folder of the state to go on from; empty: from initial values.
  std::string state;
};

// What the command line says of where a run begins and what it leaves.
struct RunPlan {
  std::string out;          // the folder of metrics.jsonl and the states
  std::string export_to;    // where the trained model will go; empty: nowhere
  int64_t steps = 0;        // of the whole run
  int64_t log_every = 10;   // steps between lines
  int64_t save_every = 0;   // steps between states; 0: none, and SIGTERM ends the process at once
  bool resume = false;      // go on from the newest state, if there is one
  std::string description;  // the first line that is shown
};

// Begins the run, or goes on with the one in plan.out: opens `output` on rank 0 and says so there.
//
// Ownership: the hooks hold `output`, which outlives them. COLLECTIVE.
// Errors, on all ranks, with nothing changed: kAlreadyExists for an export_to that holds a model;
//   kFailedPrecondition naming a state that is further than plan.steps; those of LatestState and
//   RunOutput::Open.
absl::StatusOr<TrainingHooks> BeginRun(const RunPlan& plan, const sherd::LaunchInfo& launch,
                                       sherd::World& world, RunOutput& output);

// Says on rank 0 that SIGTERM ended the run after `step`. Returns kStopped.
int EndEarly(const std::string& name, const RunPlan& plan, const sherd::LaunchInfo& launch,
             int64_t step);

}  // namespace llm
