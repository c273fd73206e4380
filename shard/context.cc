#include "sherd/shard/context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/shard/flight_recorder.h"
#include "sherd/shard/unit.h"

namespace sherd {

std::vector<int64_t> ShardContext::AgreeOn(int64_t mine, const char* op) {
  std::vector<int64_t> all(static_cast<size_t>(size()), 0);
  all[static_cast<size_t>(rank())] = mine;
  if (size() > 1) control_->AllReduce(all.data(), size(), DType::kI64, {.op = op});
  return all;
}

std::vector<bool> ShardContext::AgreeOnHolders(bool mine, const char* op) {
  std::vector<bool> holders;
  for (int64_t has : AgreeOn(mine ? 1 : 0, op)) holders.push_back(has > 0);
  return holders;
}

std::shared_ptr<ShardContext> ShardContext::Of(const Mesh& mesh) {
  if (!mesh.defined()) ThrowInvalidArgument("an undefined mesh was given", {.op = "shard"});
  std::shared_ptr<void>& slot = mesh.slot();
  if (slot == nullptr) slot = std::make_shared<ShardContext>(mesh);
  return std::static_pointer_cast<ShardContext>(slot);
}

// The copy of the mesh kept here gets a slot of its own: one shared with the original would own
// itself.
ShardContext::ShardContext(const Mesh& mesh)
    : mesh_(mesh.groups(), nullptr, mesh.device(), mesh.log()),
      shard_axis_(ForkAxis(mesh.shard_group(), "")),
      replicate_axis_(ForkAxis(mesh.replicate_group(), "replicate ")),
      control_(mesh.group().Fork("control")),
      announcer_(*this, mesh.group().Fork("announce")) {
  if (size() > 1) {
    gather_stream_ = std::make_unique<Stream>("gather", device());
    // Where a device does the waiting, one thread queues both in the order that all ranks have.
    reduce_stream_ = mesh.group().Queues()
                         ? std::make_unique<Stream>("reduce", device(), *gather_stream_)
                         : std::make_unique<Stream>("reduce", device());
  }
}

ShardContext::~ShardContext() = default;

ShardContext::AxisGroups ShardContext::ForkAxis(ProcessGroup& group, const std::string& prefix) {
  return {group.Fork(prefix + "gather"), group.Fork(prefix + "reduce")};
}

UnitAxis ShardContext::AxisGroups::axis() const {
  return {gather.get(), reduce.get(), gather->size(), gather->rank()};
}

const ShardContext::SplitAxis& ShardContext::SplitShardAxis(int park) {
  const auto it = split_axes_.find(park);
  if (it != split_axes_.end()) return it->second;
  const int rank = mesh_.shard_rank();
  std::vector<int> neighbours, across;
  for (int r = 0; r < mesh_.shard_size(); ++r) {
    if (r / park == rank / park) neighbours.push_back(r);
    if (r % park == rank % park) across.push_back(r);
  }
  const std::string name = absl::StrCat("shard/", park);
  const auto near = mesh_.shard_group().Split(name, neighbours);
  const auto far = mesh_.shard_group().Split(absl::StrCat(name, " across"), across);
  SplitAxis split{ForkAxis(*near, name + " "), ForkAxis(*far, name + " across ")};
  return split_axes_.emplace(park, std::move(split)).first->second;
}

UnitAxes ShardContext::AxesOf(const Stage& stage, int park) {
  const auto check = [](const AxisPlacement& axis, const char* name) {
    if (axis.parameters <= axis.gradients && axis.gradients <= axis.optimizer) return;
    ThrowInvalidArgument(
        absl::StrCat("the stage's ", name,
                     " axis cuts parameters without their gradients, or gradients without the "
                     "optimizer's state"),
        {.op = "stage"});
  };
  check(stage.shard, "shard");
  check(stage.replicate, "replicate");
  const bool parks = park > 1 && park != mesh_.shard_size();
  if (park < 0 || (parks && mesh_.shard_size() % park != 0) ||
      (park > 1 && stage.shard.parameters == Placement::kReplicate)) {
    ThrowInvalidArgument(
        absl::StrCat("a forward cannot leave the parameters on ", park, " ranks: the shard axis ",
                     stage.shard.parameters == Placement::kReplicate
                         ? "does not cut them"
                         : absl::StrCat("has ", mesh_.shard_size())),
        {.op = "stage"});
  }
  UnitAxes axes;
  axes.parameters_are_cut = stage.shard.parameters == Placement::kShard ||
                            stage.replicate.parameters == Placement::kShard;
  const auto cut = [&](const UnitAxis& axis) {
    if (axis.size > 1) axes.cuts.push_back(axis);
  };
  // What cuts the parameters comes first, then what cuts the gradients only, then the optimizer.
  const auto cut_by = [&](Placement AxisPlacement::*quantity, Placement AxisPlacement::*before) {
    const auto here = [&](const AxisPlacement& axis) {
      return axis.*quantity == Placement::kShard &&
             (before == nullptr || axis.*before == Placement::kReplicate);
    };
    if (here(stage.shard)) {
      if (parks && before == nullptr) {
        const SplitAxis& split = SplitShardAxis(park);
        cut(split.neighbours.axis());
        axes.parked_level = axes.levels();
        cut(split.across.axis());
      } else {
        cut(shard_axis_.axis());
      }
    }
    if (here(stage.replicate)) cut(replicate_axis_.axis());
    return axes.levels();
  };
  axes.parameter_level = cut_by(&AxisPlacement::parameters, nullptr);
  axes.gradient_level = cut_by(&AxisPlacement::gradients, &AxisPlacement::parameters);
  cut_by(&AxisPlacement::optimizer, &AxisPlacement::gradients);
  if (!parks) axes.parked_level = axes.parameter_level;
  for (const auto& [placement, groups] :
       {std::pair(&stage.shard, &shard_axis_), std::pair(&stage.replicate, &replicate_axis_)}) {
    const UnitAxis axis = groups->axis();
    if (placement->optimizer == Placement::kReplicate && axis.size > 1) {
      axes.replicas.push_back(axis);
    }
  }
  return axes;
}

Work ShardContext::Gather(ErrorContext context, std::function<void()> job) {
  if (gather_stream_ != nullptr) return gather_stream_->Enqueue(std::move(context), std::move(job));
  job();
  return Work();
}

void ShardContext::Reduce(ErrorContext context, std::function<void()> job,
                          std::vector<Ref<Storage>> spent) {
  if (reduce_stream_ == nullptr) {
    job();
    for (const Ref<Storage>& storage : spent) storage->Free();
    return;
  }
  reductions_.push_back(
      {reduce_stream_->Enqueue(std::move(context), std::move(job)), std::move(spent)});
}

void ShardContext::WaitReductions(int in_flight) {
  while (static_cast<int>(reductions_.size()) > in_flight) {
    const Work oldest = std::move(reductions_.front().work);
    const std::vector<Ref<Storage>> spent = std::move(reductions_.front().spent);
    if (reductions_.front().whole != nullptr) whole_.push_back(reductions_.front().whole);
    reductions_.pop_front();
    try {
      EventLog* const log = oldest.done() ? nullptr : events_;
      const EventSpan waiting(
          log,
          {.kind = EventKind::kWait, .phase = prefetcher_.phase(), .op = EventOp::kReduceScatter});
      oldest.Wait();
      for (const Ref<Storage>& storage : spent) storage->Free();
    } catch (const Error& error) {
      const Error told = Explain(error);
      Fail(told.what());
      ThrowError(told);
    }
  }
}

void ShardContext::AwaitWhole(Unit* unit) {
  if (reductions_.empty() || reductions_.back().whole != nullptr) {
    whole_.push_back(unit);  // with one rank, or nothing to reduce
  } else {
    reductions_.back().whole = unit;
  }
}

void ShardContext::RunWhole() {
  while (!reductions_.empty() && reductions_.front().work.done()) {
    WaitReductions(static_cast<int>(reductions_.size()) - 1);
  }
  for (size_t k = 0; k < whole_.size();) {
    Unit* const unit = whole_[k];
    if (unit->open()) {
      ++k;
      continue;
    }
    whole_.erase(whole_.begin() + static_cast<std::ptrdiff_t>(k));
    unit->RunWhenWhole();
  }
}

void ShardContext::SetEvents(EventLog* log, std::string flight_file) {
  events_ = log;
  flight_file_ = std::move(flight_file);
  for (Unit* unit : units_) unit->NameEvents(log);
}

void ShardContext::Register(Unit* unit) {
  units_.push_back(unit);
  unit->NameEvents(events_);
}

void ShardContext::Unregister(Unit* unit) {
  units_.erase(std::remove(units_.begin(), units_.end(), unit), units_.end());
  prefetcher_.Forget(unit);
  for (Unit* other : units_) other->ForgetPrefetch(unit);
  if (kept_ == unit) kept_ = nullptr;
  whole_.erase(std::remove(whole_.begin(), whole_.end(), unit), whole_.end());
  for (Reduction& reduction : reductions_) {
    if (reduction.whole == unit) reduction.whole = nullptr;
  }
}

int ShardContext::IndexOf(const Unit* unit) const {
  return static_cast<int>(std::find(units_.begin(), units_.end(), unit) - units_.begin());
}

void ShardContext::KeepForNow(Unit* unit) {
  ScopeOpens(unit);
  kept_ = unit;
}

void ShardContext::ScopeOpens(Unit* unit) {
  Unit* kept = std::exchange(kept_, nullptr);
  if (kept != nullptr && kept != unit && !kept->open()) kept->Reshard();
}

void ShardContext::ReshardIdle() {
  kept_ = nullptr;
  for (Unit* unit : units_) {
    if (!unit->open()) unit->Reshard();
  }
}

void ShardContext::EndOfBackward() {
  if (!std::exchange(in_backward_, false)) return;
  kept_ = nullptr;
  for (Unit* unit : units_) {
    unit->EndOfBackward();
    if (!unit->open() && !unit->stays()) unit->Reshard();
  }
}

Error ShardContext::Explain(const Error& error) const {
  const bool of_calls = error.code() == absl::StatusCode::kFailedPrecondition ||
                        error.code() == absl::StatusCode::kDeadlineExceeded;
  if (size() == 1 || !of_calls) return error;
  return Error(error.code(),
               absl::StrCat(error.message(),
                            "; all ranks make the same calls of units in one order: a rank that "
                            "has nothing to compute in one calls Participate(module) there"),
               error.context());
}

void ShardContext::RecordFlight(const std::string& what) {
  if (events_ == nullptr) return;
  const std::string& job = mesh_.groups().description;
  const std::string text = absl::StrCat(what, job.empty() ? "" : "\n", job);
  absl::Status written;
  if (!flight_file_.empty()) written = WriteFlightRecord(flight_file_, text, *events_);
  if (!log()) return;
  log()({.level = LogLevel::kError,
         .rank = rank(),
         .text = absl::StrCat("a step failed: ", text, "\n", FlightRecord(*events_),
                              std::string(written.message()))});
}

void ShardContext::Fail(const std::string& what) noexcept {
  if (failure_.has_value()) return;
  failure_ = what;
  RecordFlight(what);
  if (size() > 1) control_->Abort(absl::AbortedError(what));
  prefetcher_.DropAhead();
  announcer_.Reset();
}

void ShardContext::CheckUsable() const {
  if (!failure_.has_value()) return;
  ThrowFailedPrecondition(absl::StrCat(
      "an earlier step failed: ", *failure_,
      size() > 1 ? "; its groups were aborted: make a new World" : "; call Recover() to go on"));
}

void ShardContext::Recover() {
  if (failure_.has_value() && size() > 1) CheckUsable();
  WaitReductions(0);
  // What the failed step still asks of a device ends before its memory is used again.
  if (device().backend() != nullptr) device().backend()->queue().Synchronize();
  kept_ = nullptr;
  whole_.clear();
  prefetcher_.Reset();
  announcer_.Reset();
  for (Unit* unit : units_) unit->Clear();
  failure_.reset();
}

}  // namespace sherd
