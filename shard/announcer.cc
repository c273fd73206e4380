#include "sherd/shard/announcer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/shard/context.h"
#include "sherd/shard/unit.h"

namespace sherd {
namespace {

// A job whose ranks run out in ever new orders makes no more groups than this at a time.
constexpr size_t kMostChannels = 32;

}  // namespace

Announcer::Announcer(ShardContext& context, std::unique_ptr<ProcessGroup> group)
    : context_(context), group_(std::move(group)) {}

void Announcer::Begin(const std::vector<bool>& has) {
  channel_ = nullptr;
  const auto first = std::find(has.begin(), has.end(), true);
  if (first == has.end() || std::find(has.begin(), has.end(), false) == has.end()) return;
  const int leader = static_cast<int>(first - has.begin());
  const int rank = group_->rank();
  const bool has_it = has[static_cast<size_t>(rank)];
  leading_ = rank == leader;
  auto known = channels_.find(has);
  if (known == channels_.end()) {
    if (channels_.size() == kMostChannels) channels_.clear();
    std::vector<int> ranks;
    for (int r = 0; r < static_cast<int>(has.size()); ++r) {
      const bool in_channel = r == leader || !has[static_cast<size_t>(r)];
      if (has_it && !leading_ ? r == rank : in_channel) ranks.push_back(r);
    }
    auto made = group_->Split(absl::StrCat("announcements of rank ", leader), ranks);
    known = channels_.emplace(has, std::move(made)).first;
  }
  if (has_it && !leading_) return;
  channel_ = known->second.get();
  leader_ = static_cast<int>(std::count(has.begin(), first, false));
}

void Announcer::CheckUnits(std::span<Unit* const> units) const {
  for (const Unit* unit : units) {
    if (unit->context().get() == &context_) continue;
    ThrowInvalidArgument(
        absl::StrCat("ranks hold different numbers of micro-batches, and unit '", unit->name(),
                     "' is on another mesh than the model's other units, where those that have "
                     "none cannot follow: give all ranks the same number"),
        {.op = "window"});
  }
}

void Announcer::End() {
  Announce(UnitCall::Kind::kDone);
  channel_ = nullptr;
}

void Announcer::Send(UnitCall::Kind kind, int unit, int argument) {
  UnitCall call{kind, unit, argument};
  channel_->Broadcast(&call, sizeof(call), leader_, {.op = "announcement of a unit's call"});
}

void Announcer::Follow() try {
  while (channel_ != nullptr) {
    UnitCall call;
    channel_->Broadcast(&call, sizeof(call), leader_, {.op = "announcement of a unit's call"});
    if (call.kind == UnitCall::Kind::kDone) {
      channel_ = nullptr;
    } else {
      Make(call);
    }
  }
} catch (const Error& error) {
  context_.Fail(error.what());
  throw;
}

void Announcer::Make(const UnitCall& call) {
  using Kind = UnitCall::Kind;
  if (call.kind == Kind::kEndOfAllBackward) return context_.EndOfBackward();
  if (call.kind == Kind::kReshardKept) return context_.ReshardKept();
  const std::vector<Unit*>& units = context_.units();
  SHERD_CHECK(call.unit >= 0 && static_cast<size_t>(call.unit) < units.size(),
              "an announced unit that this rank does not have");
  Unit& unit = *units[static_cast<size_t>(call.unit)];
  switch (call.kind) {
    case Kind::kEnterForward:
      return unit.EnterForward(unit.version());
    case Kind::kExitForward:
      return unit.ExitForward(static_cast<AfterScope>(call.argument % UnitCall::kBackwardFollows),
                              call.argument >= UnitCall::kBackwardFollows);
    case Kind::kBeginBackward:
      unit.SetSync(static_cast<GradientSync>(call.argument));
      return unit.BeginBackward(unit.version());
    case Kind::kEndBackward:
      return unit.EndBackward(static_cast<AfterScope>(call.argument));
    case Kind::kPrefetch:
      unit.Prefetch();
      return;
    case Kind::kReshard:
      return unit.Reshard();
    default:
      return unit.EndOfBackward();
  }
}

}  // namespace sherd
