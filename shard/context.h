#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/mesh.h"
#include "sherd/runtime/core/events.h"
#include "sherd/runtime/core/storage.h"
#include "sherd/runtime/core/stream.h"
#include "sherd/shard/announcer.h"
#include "sherd/shard/axes.h"
#include "sherd/shard/prefetch.h"
#include "sherd/shard/scale.h"
#include "sherd/shard/stage.h"

namespace sherd {

class Unit;

// What the units of one mesh share: the groups and streams of gathers and reductions, which
// reductions are in flight, and whether a step has failed.
//
// Ownership: held by the mesh and by every unit. Threads: used by the thread that runs the model;
// its streams have threads of their own.
class ShardContext {
 public:
  // The context of a mesh, made at the first call. Every rank calls this at the same place.
  static std::shared_ptr<ShardContext> Of(const Mesh& mesh);
  explicit ShardContext(const Mesh& mesh);
  ~ShardContext();

  // Among all ranks of the mesh, along whatever axis.
  int rank() const { return mesh_.group().rank(); }
  int size() const { return mesh_.size(); }
  const Mesh& mesh() const { return mesh_; }
  const Device& device() const { return mesh_.device(); }
  const LogSink& log() const { return mesh_.log(); }
  // For small agreements between all ranks, on the caller's thread.
  ProcessGroup& control() { return *control_; }
  // A number, or a flag, of every rank, by rank. COLLECTIVE.
  std::vector<int64_t> AgreeOn(int64_t mine, const char* op);
  std::vector<bool> AgreeOnHolders(bool mine, const char* op);

  // How a unit of this stage is cut, with the groups of each axis. `park` ranks hold the parameters
  // between a forward and its backward; 0 or 1: as many as the stage says. COLLECTIVE at the first
  // call with a given park, which splits the shard axis.
  // Errors: kInvalidArgument for a stage that cuts parameters along an axis and not their
  //   gradients, or gradients and not the optimizer; for a park that does not divide the shard
  //   axis, or of parameters that are not cut along it.
  UnitAxes AxesOf(const Stage& stage, int park);

  // Run `job` on the stream of gathers or of reductions; at once where there is one rank.
  Work Gather(ErrorContext context, std::function<void()> job);
  // `spent` is freed when the job has ended and somebody has waited for it.
  void Reduce(ErrorContext context, std::function<void()> job,
              std::vector<Ref<Storage>> spent = {});
  // Returns when at most `in_flight` reductions are running. Errors: throws a reduction's error,
  // after Fail.
  void WaitReductions(int in_flight);

  // [Note: units whose gradients are whole]
  // The last reduction of `unit` was just started: when it has ended, RunWhole calls the unit's
  // RunWhenWhole. That is at the end of a later scope's backward, when no scope of the unit is
  // open, and at the latest when somebody waits for all reductions and calls it.
  void AwaitWhole(Unit* unit);
  void RunWhole();

  Prefetcher& prefetcher() { return prefetcher_; }
  // For micro-batches that only some ranks have.
  Announcer& announcer() { return announcer_; }
  // Who divides what the units sum.
  ScaleOwner& scale() { return scale_; }

  // Writes what the units do to `log` from now on; null: nothing, at the cost of a branch. A
  // failure then also reports the flight record, and what Describe(world) says, to the mesh's log
  // sink, and writes them to `flight_file` unless that is ""; the directory must exist. Ownership:
  // `log` outlives the units, or the next call of this. REQUIRES: no call is open, no reduction in
  // flight.
  void SetEvents(EventLog* log, std::string flight_file = "");
  EventLog* events() const { return events_; }

  void Register(Unit* unit);
  void Unregister(Unit* unit);
  const std::vector<Unit*>& units() const { return units_; }
  // A unit's place there, the same on all ranks.
  int IndexOf(const Unit* unit) const;

  // [Note: a unit stays gathered in a recompute]
  // The call a recompute just ran is the first its backward will need. So its unit is not resharded
  // at the end of the call but kept here until a scope of another unit opens. One unit at most
  // waits here.
  void KeepForNow(Unit* unit);
  // A scope of `unit` (null: none in particular) opens: reshards the unit that was kept, if
  // another.
  void ScopeOpens(Unit* unit);
  // Reshards every unit without an open scope.
  void ReshardIdle();
  // A scope of a unit has entered its backward: there will be an end.
  void BackwardBegins() { in_backward_ = true; }
  // The whole backward has ended: every unit reduces what it kept for more calls, then those
  // without an open scope are resharded, but for those that stay for the next micro-batch. Nothing
  // the second time.
  void EndOfBackward();
  // Reshards the unit that was kept, if it has no open scope.
  void ReshardKept() { ScopeOpens(nullptr); }

  // The error of a gather or a reduction, with what to do about it where ranks made different calls
  // of units, or some made none.
  Error Explain(const Error& error) const;
  // Marks the step failed. With several ranks also aborts the groups, so that the others throw too.
  void Fail(const std::string& what) noexcept;
  // Errors: kFailedPrecondition after Fail, with its text.
  void CheckUsable() const;
  // Makes the units clean after a failure: waits, drops all gradients, reshards. Errors:
  // kFailedPrecondition if the groups were aborted: then a new World is needed.
  void Recover();

 private:
  // An axis of the mesh, or a part of one: each stream has a channel of its own.
  struct AxisGroups {
    std::unique_ptr<ProcessGroup> gather;
    std::unique_ptr<ProcessGroup> reduce;
    UnitAxis axis() const;
  };
  static AxisGroups ForkAxis(ProcessGroup& group, const std::string& prefix);
  // The shard axis as two: neighbours in groups of `park`, and across those groups.
  struct SplitAxis {
    AxisGroups neighbours;
    AxisGroups across;
  };
  const SplitAxis& SplitShardAxis(int park);
  void RecordFlight(const std::string& what);

  Mesh mesh_;
  AxisGroups shard_axis_;
  AxisGroups replicate_axis_;
  std::map<int, SplitAxis> split_axes_;  // by park
  std::unique_ptr<ProcessGroup> control_;
  std::unique_ptr<Stream> gather_stream_;
  std::unique_ptr<Stream> reduce_stream_;
  Prefetcher prefetcher_;
  Announcer announcer_;
  ScaleOwner scale_{*this};
  struct Reduction {
    Work work;
    std::vector<Ref<Storage>> spent;
    Unit* whole = nullptr;  // whose gradients are whole after it
  };
  std::deque<Reduction> reductions_;
  std::vector<Unit*> whole_;  // whose last reduction has ended
  std::vector<Unit*> units_;
  Unit* kept_ = nullptr;
  bool in_backward_ = false;
  EventLog* events_ = nullptr;
  std::string flight_file_;
  std::optional<std::string> failure_;
};

}  // namespace sherd
