#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "llm/together.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/shard/state.h"

namespace llm {

inline constexpr int kStopped = 128 + 15;  // the exit code of a run that SIGTERM ended early

// Where a run in `out` keeps its states.
std::string StatesFolder(const std::string& out);

// The newest state of the run in `out`, as rank 0 sees it, with its step; empty and 0 where there
// is none, or if the run does not `resume`. COLLECTIVE. Errors, on all ranks: those of LatestState.
absl::StatusOr<std::pair<std::string, int64_t>> StateToResume(const std::string& out, bool resume,
                                                              sherd::World& world);

// From now on SIGTERM, which a scheduler sends before it takes the machine away, does not end the
// process: StopAsked says that it came.
void HeedStop();
bool StopAsked();

struct RunStatesOptions {
  int64_t steps = 0;       // of the whole run
  int64_t save_every = 0;  // steps; 0: no states
  int64_t keep = 0;        // newest states that stay; 0: all
};

// Saves the states of a run while it goes on: every so many steps, after the last, and when it is
// asked to end.
class RunStates {
 public:
  // Ownership: `world` outlives this object.
  RunStates(const std::string& out, sherd::World& world, const RunStatesOptions& options);

  // Whether this rank has written what was begun.
  bool written() const { return saver_.done(); }
  // Saves what `state` gives, if it is time; returns whether the run ends here, its state complete.
  // COLLECTIVE. Errors: those of StateSaver.
  absl::StatusOr<bool> After(int64_t step, const Together& all,
                             const std::function<sherd::TrainingState()>& state);
  // Waits for a state that is being written. COLLECTIVE. Errors: those of StateSaver.
  absl::Status End();

 private:
  const RunStatesOptions options_;
  sherd::StateSaver saver_;
  bool saving_ = false;  // begun and not ended
};

}  // namespace llm
