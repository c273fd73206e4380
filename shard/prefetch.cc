#include "sherd/shard/prefetch.h"

#include <algorithm>
#include <iterator>

#include "sherd/shard/unit.h"

namespace sherd {

void Prefetcher::Begin(Unit* unit, bool backward) {
  if (open_ > 0) return;
  cycle_ = {unit, backward, unit->unsharded()};
  now_.clear();
  ahead_.clear();
  const auto known = seen_.find(cycle_);
  plan_ = known == seen_.end() ? nullptr : &known->second;
}

void Prefetcher::Gathered(Unit* unit, int depth,
                          std::span<const std::optional<std::vector<Unit*>>, 2> lists) {
  now_.push_back(unit);
  const size_t next = now_.size();
  if (plan_ != nullptr && (next > plan_->size() || (*plan_)[next - 1] != unit)) plan_ = nullptr;
  if (const auto& list = lists[cycle_.backward ? 1 : 0]) {
    for (Unit* other : *list) Start(other);
    return;
  }
  if (plan_ == nullptr) return;
  const size_t end = std::min(plan_->size(), next + static_cast<size_t>(depth));
  // A unit that is still gathered for an earlier call is gathered again when that is over, and
  // nothing overtakes it: gathers stay in the order seen.
  for (size_t k = next; k < end && Start((*plan_)[k]); ++k) continue;
}

bool Prefetcher::Start(Unit* unit) {
  if (unit->ahead()) return true;
  if (!unit->Prefetch()) return false;
  ahead_.push_back(unit);
  return true;
}

void Prefetcher::Closed() {
  if (open_ == 0 || --open_ > 0) return;
  plan_ = nullptr;
  DropAhead();
  seen_[cycle_].swap(now_);  // not moved: a warm step keeps the memory of both
  now_.clear();
}

void Prefetcher::DropAhead() noexcept {
  for (Unit* unit : ahead_) unit->DropPrefetched();
  ahead_.clear();
}

void Prefetcher::Abandoned() {
  if (open_ > 0) --open_;
  plan_ = nullptr;
}

void Prefetcher::Forget(Unit* unit) {
  for (auto it = seen_.begin(); it != seen_.end();) {
    const bool part = it->first.unit == unit ||
                      std::find(it->second.begin(), it->second.end(), unit) != it->second.end();
    it = part ? seen_.erase(it) : std::next(it);
  }
  plan_ = nullptr;
  ahead_.erase(std::remove(ahead_.begin(), ahead_.end(), unit), ahead_.end());
  now_.erase(std::remove(now_.begin(), now_.end(), unit), now_.end());
}

void Prefetcher::Reset() {
  open_ = 0;
  plan_ = nullptr;
  now_.clear();
  ahead_.clear();
}

}  // namespace sherd
