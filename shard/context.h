#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/runtime/comm/mesh.h"
#include "sherd/runtime/core/stream.h"
#include "sherd/shard/prefetch.h"

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

  int rank() const { return mesh_.shard_rank(); }
  int size() const { return mesh_.shard_size(); }
  const Device& device() const { return mesh_.device(); }
  const LogSink& log() const { return mesh_.log(); }
  // For small agreements between ranks, on the caller's thread.
  ProcessGroup& control() { return *control_; }

  // Run `job` on the stream of gathers or of reductions, with that stream's group.
  Work Gather(ErrorContext context, std::function<void(ProcessGroup&)> job);
  void Reduce(ErrorContext context, std::function<void(ProcessGroup&)> job);
  // Returns when at most `in_flight` reductions are running. Errors: throws a reduction's error,
  // after Fail.
  void WaitReductions(int in_flight);

  Prefetcher& prefetcher() { return prefetcher_; }

  void Register(Unit* unit) { units_.push_back(unit); }
  void Unregister(Unit* unit);
  const std::vector<Unit*>& units() const { return units_; }

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

  // Marks the step failed. With several ranks also aborts the groups, so that the others throw too.
  void Fail(const std::string& what) noexcept;
  // Errors: kFailedPrecondition after Fail, with its text.
  void CheckUsable() const;
  // Makes the units clean after a failure: waits, drops all gradients, reshards. Errors:
  // kFailedPrecondition if the groups were aborted: then a new World is needed.
  void Recover();

 private:
  Mesh mesh_;
  std::unique_ptr<ProcessGroup> gather_group_;
  std::unique_ptr<ProcessGroup> reduce_group_;
  std::unique_ptr<ProcessGroup> control_;
  std::unique_ptr<Stream> gather_stream_;
  std::unique_ptr<Stream> reduce_stream_;
  Prefetcher prefetcher_;
  std::deque<Work> reductions_;
  std::vector<Unit*> units_;
  Unit* kept_ = nullptr;
  std::optional<std::string> failure_;
};

}  // namespace sherd
