#include "sherd/shard/unit.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

Ladder::Options LadderOptions(const Layout& layout, const UnitOptions& options) {
  Ladder::Options out{{}, options.offload};
  for (const LayoutSegment& segment : layout.segments()) {
    out.gathered.push_back(IsFloating(segment.dtype)
                               ? options.precision.parameters.value_or(segment.dtype)
                               : segment.dtype);
  }
  return out;
}

}  // namespace

Unit::Unit(std::string name, std::vector<UnitParameter> parameters,
           std::shared_ptr<ShardContext> context, const UnitOptions& options)
    : name_(std::move(name)),
      parameters_(std::move(parameters)),
      context_(std::move(context)),
      options_(options),
      axes_(context_->AxesOf(options.stage, options.park)),
      layout_(EntriesOf(parameters_), axes_.pieces()),
      ladder_(layout_, axes_, LadderOptions(layout_, options), context_->device(), this),
      gradients_(layout_, axes_, {options.precision.reduce, options.offload}, *context_, name_) {
  for (int i = 0; i < this->parameters(); ++i) {
    const auto s = static_cast<size_t>(layout_.segment_of(i));
    const UnitParameter& parameter = parameters_[At(i)];
    const LayoutPiece piece = layout_.PieceOf(i, axes_.piece());
    full_.push_back(
        Tensor::View(ladder_.full(s), layout_.offset_of(i), ladder_.gathered(s), parameter.shape));
    const Tensor& shard = ladder_.shard(s);
    local_.push_back(shard.Slice(0, piece.chunk_offset, piece.chunk_offset + piece.elems));
  }
  context_->Register(this);
}

Unit::~Unit() {
  // A reduction in flight reads buffers this unit owns a share of; errors were reported to those
  // who waited.
  try {
    context_->WaitReductions(0);
  } catch (const Error&) {
  }
  forward_open_ = backward_open_ = 0;
  Reshard();
  AwaitReaders();
  context_->Unregister(this);
}

void Unit::SetPrefetch(std::function<int64_t()> version_source, int depth) {
  version_source_ = std::move(version_source);
  prefetch_depth_ = depth;
}

void Unit::SetPrefetchList(bool backward, std::optional<std::vector<Unit*>> units) {
  prefetch_lists_[backward ? 1 : 0] = std::move(units);
}

void Unit::ForgetPrefetch(Unit* unit) {
  for (auto& list : prefetch_lists_) {
    if (list.has_value()) list->erase(std::remove(list->begin(), list->end(), unit), list->end());
  }
}

bool Unit::Prefetch() {
  if (!version_source_ || context_->size() == 1) return false;
  const int64_t version = version_source_();
  if (unsharded_ && (!ladder_.keeps_full() || open() || gathered_version_ == version)) return false;
  if (unsharded_) AwaitReaders();
  StartGather(version);
  ahead_ = true;
  return true;
}

// Whoever uses the gather is told what it threw. After a failure the groups are aborted, so it
// ends.
void Unit::AwaitReaders() noexcept {
  try {
    gather_.Wait();
  } catch (const Error&) {
  }
}

void Unit::DropPrefetched() {
  if (std::exchange(ahead_, false)) Reshard();
}

void Unit::Unshard(int64_t version) {
  // Under an open scope a copy stays what it is: whoever reads a parameter that changed since is
  // told.
  if (unsharded_ && open()) return;
  const bool current = unsharded_ && gathered_version_ == version;
  const bool ahead = std::exchange(ahead_, false);
  // Of a unit that keeps its memory the gather may be one that was started ahead in vain before.
  if (current && !ahead) return AwaitGather();
  if (!current) {
    if (unsharded_) AwaitGather();  // of older values, into the same memory
    StartGather(version);
  }
  context_->prefetcher().Gathered(this, prefetch_depth_, prefetch_lists_);
  AwaitGather();
}

void Unit::StartGather(int64_t version) {
  gather_ = Work();
  gathered_version_ = -1;
  const bool communicates = ladder_.Prepare(version);
  gathered_version_ = version;
  unsharded_ = true;
  ++gathers_;
  if (!communicates) return ladder_.Climb({});
  const ErrorContext what{.op = "all_gather", .module_path = absl::StrCat("unit '", name_, "'")};
  EventLog* const log = events_;
  Event event;
  if (log != nullptr) {
    event = EventOf(EventKind::kCollective, context_->prefetcher().phase(), EventOp::kAllGather);
    event.lane = EventLane::kGather;
    event.bytes = ladder_.climb_bytes();
    event = log->Enqueue(event);
  }
  gather_ = context_->Gather(what, [this, what, log, event] {
    const EventSpan running(log, event);
    ladder_.Climb(what);
  });
}

void Unit::NameEvents(EventLog* log) {
  events_ = log;
  event_unit_ = log != nullptr ? log->Intern(name_) : 0;
  gradients_.set_event_unit(event_unit_);
}

Event Unit::EventOf(EventKind kind, EventPhase phase, EventOp op) const {
  return {.kind = kind, .phase = phase, .op = op, .unit = event_unit_, .sequence = gathers_};
}

void Unit::AwaitGather() {
  try {
    EventLog* const log = gather_.done() ? nullptr : events_;
    const EventSpan waiting(
        log, EventOf(EventKind::kWait, context_->prefetcher().phase(), EventOp::kAllGather));
    gather_.Wait();
  } catch (const Error& error) {
    ladder_.Invalidate();
    gathered_version_ = -1;
    const Error told = context_->Explain(error);
    context_->Fail(told.what());
    Reshard();
    ThrowError(told);
  }
}

void Unit::Announce(UnitCall::Kind kind, int argument) const {
  if (context_->announcer().leading()) {
    context_->announcer().Announce(kind, context_->IndexOf(this), argument);
  }
}

void Unit::EnterForward(int64_t version) {
  Announce(UnitCall::Kind::kEnterForward);
  context_->ScopeOpens(this);
  context_->prefetcher().Begin(this, /*backward=*/false);
  if (events_ != nullptr) events_->Begin(ForwardEvent());
  Unshard(version);
  ++forward_open_;
  context_->prefetcher().Opened();
  phase_ = "in a forward";
}

void Unit::CheckOpen(int scopes, const char* op) const {
  if (scopes > 0) return;
  ThrowFailedPrecondition(absl::StrCat("unit '", name_, "' has no open scope of that kind"),
                          {.op = op});
}

void Unit::ExitForward(AfterScope after, bool backward_follows) {
  CheckOpen(forward_open_, "exit_forward");
  Announce(UnitCall::Kind::kExitForward,
           static_cast<int>(after) + (backward_follows ? UnitCall::kBackwardFollows : 0));
  --forward_open_;
  if (events_ != nullptr) events_->End(ForwardEvent());
  if (backward_follows) ++calls_ahead_;
  context_->prefetcher().Closed();
  stays_ = false;
  if (open()) return;
  phase_ = "after a forward";
  Settle(after);
}

Event Unit::ForwardEvent() const {
  return EventOf(EventKind::kScope, context_->prefetcher().in_backward() ? EventPhase::kRecompute
                                                                         : EventPhase::kForward);
}

void Unit::Settle(AfterScope after) {
  if (after == AfterScope::kReshard) Release(/*park=*/false);
  if (after == AfterScope::kPark) Release(/*park=*/true);
  if (after == AfterScope::kForNow) context_->KeepForNow(this);
}

void Unit::AbandonForward() noexcept {
  if (context_->announcer().leading()) {
    context_->Fail("a call of unit '" + name_ +
                   "' failed in a micro-batch that other ranks follow");
  }
  --forward_open_;
  context_->prefetcher().Abandoned();
  phase_ = "after a forward that failed";
  Reshard();
}

void Unit::BeginBackward(int64_t version) {
  Announce(UnitCall::Kind::kBeginBackward, static_cast<int>(sync_));
  context_->ScopeOpens(this);
  context_->BackwardBegins();
  context_->prefetcher().Begin(this, /*backward=*/true);
  if (events_ != nullptr) events_->Begin(EventOf(EventKind::kScope, EventPhase::kBackward));
  Unshard(version);
  ++backward_open_;
  context_->prefetcher().Opened();
  phase_ = "in a backward";
  if (backward_open_ > 1) return;
  try {
    gradients_.Open();
  } catch (...) {
    AbandonBackward();
    throw;
  }
}

// A forward scope that is still open (a UnitScope around the backward) contributes no gradient: it
// keeps the unit gathered, but nothing waits for it.
void Unit::EndBackward(AfterScope after) {
  CheckOpen(backward_open_, "end_backward");
  Announce(UnitCall::Kind::kEndBackward, static_cast<int>(after));
  if (calls_ahead_ > 0) --calls_ahead_;
  if (backward_open_ == 1) {
    const bool more = options_.reduce_once && calls_ahead_ > 0;
    owes_reduction_ = more;
    const bool whole = when_whole_ && calls_ahead_ == 0 && sync_ == GradientSync::kFull;
    try {
      if (sync_ != GradientSync::kNone && !more) {
        gradients_.Reduce(sync_ == GradientSync::kFull, whole);
        if (whole) context_->AwaitWhole(this);
      }
    } catch (...) {
      AbandonBackward();
      throw;
    }
    phase_ = forward_open_ > 0 ? "in a forward" : "after a backward";
  }
  --backward_open_;
  if (events_ != nullptr) events_->End(EventOf(EventKind::kScope, EventPhase::kBackward));
  context_->prefetcher().Closed();
  stays_ = after == AfterScope::kKeep;
  if (!open()) Settle(after);
  context_->RunWhole();
}

void Unit::AbandonBackward() noexcept {
  --backward_open_;
  context_->prefetcher().Abandoned();
  if (backward_open_ == 0) gradients_.Abandon();
  phase_ = "after a backward that failed";
  Reshard();
}

UnitGradient Unit::TakeGradient(int i) {
  CheckOpen(backward_open_, "take_gradient");
  if (!gradients_.trainable(i)) {
    ThrowFailedPrecondition(absl::StrCat("parameter '", parameters_[At(i)].name, "' of unit '",
                                         name_, "' was frozen between a forward and its backward"));
  }
  return gradients_.Take(i, parameters_[At(i)].shape);
}

void Unit::FinishGradients() {
  calls_ahead_ = 0;
  if (!gradients_.pending()) return;
  context_->WaitReductions(1);
  gradients_.Reduce(/*finish=*/true);
}

void Unit::RunWhenWhole() {
  gradients_.TakeAgreement();
  if (const auto done = std::exchange(when_whole_, nullptr)) done(*this);
}

void Unit::EndOfBackward() {
  calls_ahead_ = 0;
  const bool owes = std::exchange(owes_reduction_, false);
  if (sync_ == GradientSync::kNone || !(owes || gradients_.pending())) return;
  gradients_.Reduce(sync_ == GradientSync::kFull);
}

void Unit::ReduceHeld() {
  if (sync_ == GradientSync::kNone || !gradients_.pending()) return;
  context_->WaitReductions(1);
  gradients_.Reduce(sync_ == GradientSync::kFull);
}

Tensor Unit::LocalGradient(int i) { return used(i) ? HeldGradient(i) : Tensor(); }

void Unit::SetTrainable(int i, bool trainable) {
  if (gradients_.trainable(i) == trainable) return;
  const char* why = open() ? "while a call of its unit is open" : nullptr;
  if (gradients_.pending()) why = "while gradients of its unit are on their way";
  for (int k = 0; k < parameters() && why == nullptr; ++k) {
    if (used(k)) why = "while its unit holds gradients; step or clear them first";
  }
  if (why != nullptr) {
    ThrowFailedPrecondition(absl::StrCat("parameter '", parameters_[At(i)].name, "' of unit '",
                                         name_, "' is ", trainable ? "unfrozen " : "frozen ", why));
  }
  gradients_.SetTrainable(i, trainable);
}

void Unit::Release(bool park) {
  if (!unsharded_ || open() || ladder_.keeps_full()) return;
  ahead_ = false;
  AwaitReaders();  // which write what is freed, too
  ladder_.Drop(park);
  unsharded_ = false;
  if (events_ != nullptr) {
    events_->Instant(EventOf(EventKind::kReshard, context_->prefetcher().phase()));
  }
}

void Unit::Clear() {
  forward_open_ = 0;
  backward_open_ = 0;
  calls_ahead_ = 0;
  when_whole_ = nullptr;
  gradients_.ClearAll();
  Reshard();
  phase_ = "recovered after a failure";
}

std::string Unit::DescribeAbsent(const Storage& storage, int64_t byte_offset) const {
  for (int i = 0; i < parameters(); ++i) {
    const Tensor& full = full_[At(i)];
    const int64_t begin = full.offset_elems() * SizeOf(full.dtype());
    if (full.storage().get() == &storage && begin <= byte_offset &&
        byte_offset < begin + std::max<int64_t>(full.bytes(), 1)) {
      return absl::StrCat("parameter '", parameters_[At(i)].name, "' of unit '", name_,
                          "' is sharded (phase: ", phase_,
                          "); read it inside a call of its module");
    }
  }
  return absl::StrCat("a parameter of unit '", name_, "' is sharded (phase: ", phase_, ")");
}

}  // namespace sherd
