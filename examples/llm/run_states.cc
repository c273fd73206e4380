#include "llm/run_states.h"

#include <csignal>
#include <cstdlib>
#include <optional>
#include <vector>

#include "sherd/runtime/comm/agree.h"

namespace llm {
namespace {

static_assert(kStopped == 128 + SIGTERM);

volatile std::sig_atomic_t stop_asked = 0;  // NOLINT: a signal handler has nothing else

void AskToStop(int) { stop_asked = 1; }

}  // namespace

std::string StatesFolder(const std::string& out) { return out + "/states"; }

absl::StatusOr<std::pair<std::string, int64_t>> StateToResume(const std::string& out, bool resume,
                                                              sherd::World& world) {
  std::string found;
  absl::Status looked;
  if (resume && world.rank() == 0) {
    const auto latest = sherd::LatestState(StatesFolder(out));
    looked = latest.status();
    if (latest.ok() && *latest) found = **latest;
  }
  if (absl::Status status = sherd::AgreeOn(world.group(), looked); !status.ok()) return status;
  found = sherd::GatherTexts(world.group(), found)[0];
  if (found.empty()) return std::pair(found, int64_t{0});
  return std::pair(found, std::strtoll(found.substr(found.rfind('-') + 1).c_str(), nullptr, 10));
}

void HeedStop() { std::signal(SIGTERM, AskToStop); }

bool StopAsked() { return stop_asked != 0; }

RunStates::RunStates(const std::string& out, sherd::World& world, const RunStatesOptions& options)
    : options_(options),
      saver_(StatesFolder(out), world.group(),
             {.keep = options.keep, .written_by = sherd::Describe(world)}) {}

absl::Status RunStates::End() {
  return std::exchange(saving_, false) ? saver_.End().status() : absl::OkStatus();
}

absl::StatusOr<bool> RunStates::After(int64_t step, const Together& all,
                                      const std::function<sherd::TrainingState()>& state) {
  if (options_.save_every == 0) return false;
  if (saving_ && all.written) {
    if (absl::Status ended = End(); !ended.ok()) return ended;
  }
  const bool last = step == options_.steps;
  if (!last && !all.stop && step % options_.save_every != 0) return false;
  if (absl::Status ended = End(); !ended.ok()) return ended;
  if (absl::Status begun = saver_.Begin(state()); !begun.ok()) return begun;
  saving_ = true;
  if (last || !all.stop) return false;
  if (absl::Status ended = End(); !ended.ok()) return ended;
  return true;
}

}  // namespace llm
