#include "sherd/checkpoint/budget.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/autograd/internal/region.h"
#include "sherd/checkpoint/internal/budget_lease.h"
#include "sherd/runtime/base/error.h"

namespace sherd {

using internal::OpNote;
using internal::Replayed;

struct MemoryBudget::Region {
  std::vector<OpNote> ops;
  std::vector<int32_t> producers;
  bool early_stop = true;
};

struct MemoryBudget::Plan {
  struct Op {
    std::string_view name;
    int64_t bytes = 0;
    bool keep = false;
  };
  std::vector<std::vector<Op>> regions;
  double least_value = std::numeric_limits<double>::infinity();  // of an op that is kept
};

namespace {

double CostOf(const OpNote& note) {
  return note.flops + MemoryBudget::kFlopsPerByte * static_cast<double>(note.moved_bytes);
}

// What is known of an op before it runs: the inputs are taken to be as large as the outputs.
double ValueOf(double flops, int64_t bytes) {
  const auto b = static_cast<double>(std::max<int64_t>(bytes, 1));
  return (flops + MemoryBudget::kFlopsPerByte * 2.0 * b) / b;
}

bool MayKeep(const OpNote& note) {
  return !note.is_view && note.kind != OpKind::kRegion && note.output_bytes + note.inner_bytes > 0;
}

// Bytes held and work repeated by a call.
struct Outcome {
  int64_t bytes = 0;
  double cost = 0.0;
};

// Searches for what one call should keep next.
//
// What keeping an op saves depends on what else is kept. In calls of few ops every op is tried
// again after each choice; in long ones only those that look best, since a value seldom grows.
class RegionPlanner {
 public:
  RegionPlanner(std::vector<OpNote>& ops, std::span<const int32_t> producers, bool early_stop)
      : ops_(ops), producers_(producers), early_stop_(early_stop), candidates_(ops.size()) {
    for (OpNote& note : ops_) note.kept = -1;
    now_ = Try();
    full_cost_ = now_.cost;
    for (size_t k = 0; k < ops_.size(); ++k) Evaluate(k);
  }

  // Chooses the op that saves most work for each byte among those that add at most `bytes_left`.
  // Returns whether there is one.
  bool FindBest(int64_t bytes_left) {
    for (;;) {
      best_ = -1;
      for (size_t k = 0; k < ops_.size(); ++k) {
        const Candidate& c = candidates_[k];
        if (c.value <= 0.0 || c.bytes > bytes_left) continue;
        if (best_ < 0 || c.value > value()) best_ = static_cast<int>(k);
      }
      if (best_ < 0 || candidates_[static_cast<size_t>(best_)].fresh) return best_ >= 0;
      Evaluate(static_cast<size_t>(best_));
    }
  }
  // Of the choice: the work it saves for each byte, and the bytes it adds.
  double value() const { return candidates_[static_cast<size_t>(best_)].value; }
  int64_t bytes() const { return candidates_[static_cast<size_t>(best_)].bytes; }
  const Outcome& now() const { return now_; }
  double full_cost() const { return full_cost_; }

  void TakeBest() {
    ops_[static_cast<size_t>(best_)].kept = 0;
    now_ = Try();
    for (size_t k = 0; k < ops_.size(); ++k) {
      candidates_[k].fresh = false;
      if (ops_.size() <= kFewOps || ops_[k].kept >= 0) Evaluate(k);
    }
  }

 private:
  static constexpr size_t kFewOps = 128;
  struct Candidate {
    double value = 0.0;
    int64_t bytes = 0;
    bool fresh = false;
  };

  void Evaluate(size_t k) {
    candidates_[k] = {.fresh = true};
    if (ops_[k].kept >= 0 || !MayKeep(ops_[k])) return;
    ops_[k].kept = 0;
    const Outcome outcome = Try();
    ops_[k].kept = -1;
    candidates_[k].bytes = outcome.bytes - now_.bytes;
    const auto bytes = static_cast<double>(std::max<int64_t>(candidates_[k].bytes, 1));
    candidates_[k].value = (now_.cost - outcome.cost) / bytes;
  }

  Outcome Try() {
    internal::DecideReplay(ops_, producers_, early_stop_);
    Outcome outcome;
    for (const OpNote& note : ops_) {
      outcome.bytes += internal::KeptBytes(note);
      if (note.replayed == Replayed::kComputed && !note.is_view) outcome.cost += CostOf(note);
    }
    return outcome;
  }

  std::vector<OpNote>& ops_;
  const std::span<const int32_t> producers_;
  const bool early_stop_;
  std::vector<Candidate> candidates_;
  Outcome now_;
  double full_cost_ = 0.0;
  int best_ = -1;
};

}  // namespace

std::string BudgetReport::ToString() const {
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  return absl::StrFormat(
      "memory budget: %.1f of %.1f MiB in use, at most %.1f; %d rounds, %d plans; the plan keeps "
      "%d "
      "ops in %.1f MiB and repeats %.4g of %.4g GFLOP",
      mib(used_bytes), mib(budget_bytes), mib(peak_bytes), rounds, plans, planned_ops,
      mib(planned_bytes), planned_cost / 1e9, full_cost / 1e9);
}

MemoryBudget::MemoryBudget(int64_t bytes) : round_(std::make_shared<std::vector<Region>>()) {
  if (bytes < 0) {
    ThrowInvalidArgument(absl::StrCat("a budget of ", bytes, " bytes"), {.op = "MemoryBudget"});
  }
  report_.budget_bytes = bytes;
}

bool MemoryBudget::Reserve(int64_t bytes) {
  if (report_.used_bytes + bytes > report_.budget_bytes) return false;
  report_.used_bytes += bytes;
  report_.peak_bytes = std::max(report_.peak_bytes, report_.used_bytes);
  return true;
}

bool MemoryBudget::Chooses(size_t region, const OpInfo& op, const KeepPolicy& first_rule) {
  if (plan_ == nullptr) return first_rule(op);
  if (follows_) {
    const auto ordinal = static_cast<size_t>(op.ordinal);
    const bool known = region < plan_->regions.size() && ordinal < plan_->regions[region].size();
    if (known) {
      const Plan::Op& planned = plan_->regions[region][ordinal];
      if (planned.name == op.name && planned.bytes == op.bytes) return planned.keep;
    }
    follows_ = false;
  }
  return ValueOf(op.flops, op.bytes) >= plan_->least_value;
}

void MemoryBudget::EndRound() {
  ++report_.rounds;
  std::vector<Region> round = std::exchange(*round_, {});
  const size_t regions = std::exchange(regions_, 0);
  const bool followed = std::exchange(follows_, true);
  if (plan_ != nullptr && followed && regions <= plan_->regions.size()) return;
  ++report_.plans;
  report_.planned_ops = report_.planned_bytes = 0;
  report_.planned_cost = report_.full_cost = 0.0;
  std::vector<RegionPlanner> planners;
  planners.reserve(round.size());
  for (Region& region : round) {
    planners.emplace_back(region.ops, region.producers, region.early_stop);
  }
  int64_t left = report_.budget_bytes;
  for (;;) {
    RegionPlanner* best = nullptr;
    for (RegionPlanner& planner : planners) {
      if (!planner.FindBest(left)) continue;
      if (best == nullptr || planner.value() > best->value()) best = &planner;
    }
    if (best == nullptr) break;
    left -= best->bytes();
    best->TakeBest();
  }
  auto plan = std::make_shared<Plan>();
  for (size_t r = 0; r < round.size(); ++r) {
    std::vector<Plan::Op>& ops = plan->regions.emplace_back();
    report_.full_cost += planners[r].full_cost();
    report_.planned_cost += planners[r].now().cost;
    report_.planned_bytes += planners[r].now().bytes;
    internal::DecideReplay(round[r].ops, round[r].producers, round[r].early_stop);
    for (const OpNote& note : round[r].ops) {
      const bool keep = note.replayed == Replayed::kKept;
      const int64_t bytes = note.output_bytes + note.inner_bytes;
      ops.push_back({note.name, bytes, keep});
      if (!keep) continue;
      ++report_.planned_ops;
      plan->least_value = std::min(plan->least_value, ValueOf(note.flops, bytes));
    }
  }
  plan_ = std::move(plan);
}

namespace internal {

BudgetLease::BudgetLease(std::shared_ptr<MemoryBudget> budget)
    : budget_(std::move(budget)), region_(budget_->regions_++) {
  ++budget_->live_;
  budget_->round_->resize(budget_->regions_);
}

BudgetLease::~BudgetLease() {
  budget_->Release(bytes_);
  --budget_->live_;
  if (!settled_) {
    // It failed, or nobody wants its gradient: as if it had not been called.
    if (region_ + 1 == budget_->regions_) --budget_->regions_;
  } else if (budget_->live_ == 0) {
    budget_->EndRound();
  }
}

bool BudgetLease::Keeps(const OpInfo& op, const KeepPolicy& first_rule) {
  if (!budget_->Chooses(region_, op, first_rule) || !budget_->Reserve(op.bytes)) return false;
  bytes_ += op.bytes;
  return true;
}

void BudgetLease::Settle(const RegionNotes& notes, bool early_stop) {
  budget_->Release(bytes_ - notes.kept_bytes);
  bytes_ = notes.kept_bytes;
  settled_ = true;
  (*budget_->round_)[region_] = {notes.ops, notes.producers, early_stop};
}

}  // namespace internal
}  // namespace sherd
