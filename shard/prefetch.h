#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "sherd/runtime/core/events.h"

namespace sherd {

class Unit;

// Starts gathers ahead of their use, in the order in which units were gathered before.
//
// [Note: prefetch follows the order seen] A *cycle* is the time from the first scope that opens
// while none is open to the close of the last one: a forward of the root, a backward of one of its
// calls, an evaluation. Its gathers are noted in order, recomputes included, under the unit that
// began it, its direction, and whether that unit was gathered already, as it is in a root's second
// call of a step. When the same cycle comes again, each unit that is gathered starts
// the gathers of those that followed it then, as many as its depth says. The first gather that
// differs ends that for this cycle; what was gathered ahead and not used is freed at the cycle's
// end. So a unit whose backward is over is not gathered again, however a recompute looks like a
// forward; nothing is gathered ahead over a step's end, where parameters change; and all ranks
// decide alike, since they gather in one order. Threads: the thread that runs the model.
class Prefetcher {
 public:
  // A scope of `unit` is about to open: a cycle begins if none is open.
  void Begin(Unit* unit, bool backward);
  // `unit` needed a gather, which has been started: starts those ahead, `depth` of those that
  // followed, or those of the list for the cycle's direction (forward, backward) where there is
  // one. Errors: those of starting a gather.
  void Gathered(Unit* unit, int depth, std::span<const std::optional<std::vector<Unit*>>, 2> lists);
  // Which part of a step the open cycle is: kForward or kBackward; kNone without one.
  EventPhase phase() const {
    return open_ == 0        ? EventPhase::kNone
           : cycle_.backward ? EventPhase::kBackward
                             : EventPhase::kForward;
  }
  bool in_backward() const { return open_ > 0 && cycle_.backward; }
  // A scope is open, and closed. The last one to close ends the cycle.
  void Opened() { ++open_; }
  void Closed();
  // A scope was left by an exception: nothing more is started, and nothing is waited for, since
  // peers may not take part any more.
  void Abandoned();
  // Frees what was gathered ahead and not used. Waits for it: after a failure, when the groups are
  // aborted.
  void DropAhead() noexcept;
  // Forgets every order that `unit` is part of.
  void Forget(Unit* unit);
  // After a failure: no scope is open, nothing is on its way.
  void Reset();

 private:
  // Whether `unit` is on its way ahead now, started by this call or before.
  bool Start(Unit* unit);
  // A unit that is still gathered, from an earlier call of the step, has other gathers before it.
  struct Cycle {
    Unit* unit = nullptr;   // that began it
    bool backward = false;  // with a backward
    bool gathered = false;  // while it was gathered already
    bool operator<(const Cycle& other) const {
      return std::tie(unit, backward, gathered) <
             std::tie(other.unit, other.backward, other.gathered);
    }
  };
  std::map<Cycle, std::vector<Unit*>> seen_;
  Cycle cycle_;
  std::vector<Unit*> now_;                    // gathers of the open cycle
  const std::vector<Unit*>* plan_ = nullptr;  // of its like before, while this one agrees
  std::vector<Unit*> ahead_;                  // started ahead in this cycle
  int open_ = 0;
};

}  // namespace sherd
