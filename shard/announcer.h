#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sherd/runtime/comm/process_group.h"

namespace sherd {

class ShardContext;
class Unit;

// One call of a unit, or of all units together, as another rank repeats it.
struct UnitCall {
  enum class Kind : int32_t {
    kEnterForward,
    kExitForward,    // argument: AfterScope, plus kBackwardFollows if one does
    kBeginBackward,  // argument: GradientSync
    kEndBackward,    // argument: AfterScope
    kPrefetch,
    kReshard,
    kEndOfBackward,     // of this unit
    kEndOfAllBackward,  // of the context
    kReshardKept,       // of the context
    kDone,              // the micro-batch has ended
  };
  static constexpr int32_t kBackwardFollows = 16;
  Kind kind = Kind::kDone;
  int32_t unit = -1;  // in the order of registration, the same on all ranks
  int32_t argument = 0;
};

// [Note: micro-batches that only some ranks have]
// Ranks without one have nothing to compute, but their pieces are gathered and their sums are
// needed. The lowest rank that has it, the *leader*, announces each call of a unit to them, before
// it makes the call, and they make the same call: so their gathers, reductions, prefetches and
// reshards fall where the leader's do, recomputes included, with nothing of a module or a tape.
// They contribute what they have accumulated, or zeros. Micro-batches that all ranks have pay a
// branch.
//
// Announcements travel as broadcasts in a group of the leader and those who follow, which is made
// once for each set of ranks.
// Threads: the thread that runs the model.
class Announcer {
 public:
  // `group` has all ranks of the context and is used for nothing else.
  Announcer(ShardContext& context, std::unique_ptr<ProcessGroup> group);

  // One micro-batch: `has` says of every rank whether it holds it. The leader announces from now
  // on; the others do nothing. COLLECTIVE where some ranks have it and some do not: all ranks call
  // it in one order. Errors: those of ProcessGroup::Split.
  void Begin(const std::vector<bool>& has);
  // Of ranks that hold different numbers of micro-batches. Errors: kInvalidArgument if one of the
  // model's units is on another mesh, whose calls nobody announces.
  void CheckUnits(std::span<Unit* const> units) const;
  // Of ranks that have it: it has been computed; followers are told.
  void End();
  // Of ranks that do not: makes the leader's calls until it is done. Errors: those of the calls;
  // kAborted when the leader failed.
  void Follow();
  // After a failure: nobody is told anything more.
  void Reset() { channel_ = nullptr; }

  bool leading() const { return leading_ && channel_ != nullptr; }
  // Of the leader: tells those who follow. Otherwise nothing.
  void Announce(UnitCall::Kind kind, int unit = -1, int argument = 0) {
    if (leading()) Send(kind, unit, argument);
  }

 private:
  void Send(UnitCall::Kind kind, int unit, int argument);
  void Make(const UnitCall& call);

  ShardContext& context_;
  const std::unique_ptr<ProcessGroup> group_;
  std::map<std::vector<bool>, std::unique_ptr<ProcessGroup>> channels_;  // by who has it
  ProcessGroup* channel_ = nullptr;  // of the open micro-batch, if this rank leads or follows
  int leader_ = 0;                   // in channel_
  bool leading_ = false;
};

}  // namespace sherd
