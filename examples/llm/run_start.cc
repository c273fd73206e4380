#include "llm/run_start.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "llm/run_states.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/io/safetensors_folder.h"

namespace llm {

absl::StatusOr<TrainingHooks> BeginRun(const RunPlan& plan, const sherd::LaunchInfo& launch,
                                       sherd::World& world, RunOutput& output) {
  const auto found = StateToResume(plan.out, plan.resume, world);
  if (!found.ok()) return found.status();
  const auto& [state, step] = *found;
  if (step > plan.steps) {
    return absl::FailedPreconditionError(absl::StrCat(
        "state ", state, " is of step ", step, ", and --steps ", plan.steps, " ends before it"));
  }
  const bool speaks = world.rank() == 0;
  absl::Status opened = absl::OkStatus();
  if (speaks && !plan.export_to.empty()) {
    opened = sherd::SafetensorsFolderWriter::Check(plan.export_to);
  }
  if (speaks && opened.ok()) {
    opened = output.Open({.out = plan.out,
                          .steps = plan.steps,
                          .log_every = plan.log_every,
                          .resume = plan.resume,
                          .from = step},
                         launch);
  }
  if (absl::Status agreed = sherd::AgreeOn(world.group(), opened); !agreed.ok()) return agreed;
  if (speaks) {
    std::printf("%s\n", plan.description.c_str());
    if (!state.empty()) {
      std::printf("goes on after step %lld, from %s\n", static_cast<long long>(step),
                  state.c_str());
    }
    std::fflush(stdout);
  }
  if (plan.save_every > 0) HeedStop();
  TrainingHooks hooks;
  if (speaks) hooks.on_step = [&output](const StepRecord& record) { return output.Add(record); };
  hooks.stop_asked = StopAsked;
  hooks.last = output.last();
  hooks.state = state;
  return hooks;
}

int EndEarly(const std::string& name, const RunPlan& plan, const sherd::LaunchInfo& launch,
             int64_t step) {
  if (launch.rank == 0) {
    std::fprintf(stderr, "%s: SIGTERM: saved step %lld in %s; --resume goes on from there\n",
                 name.c_str(), static_cast<long long>(step), StatesFolder(plan.out).c_str());
  }
  return kStopped;
}

}  // namespace llm
