#include "sherd/shard/internal/plan_run.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/shard/layout.h"

namespace sherd::internal {
namespace {

// As the allocator does.
int64_t Held(int64_t bytes) {
  constexpr int64_t kUnit = CachingAllocator::kAlignment;
  return (bytes + kUnit - 1) / kUnit * kUnit;
}

bool Cut(Placement placement) { return placement == Placement::kShard; }

}  // namespace

PlanRun::PlanRun(const PlanModel& model, const PlanOptions& options) : options_(options) {
  for (const PlanUnit& block : model.blocks) units_.push_back(Describe(block, false));
  units_.push_back(Describe(model.root, true));
}

int64_t PlanRun::UnitRun::Elems(const Segment& segment, int level) const {
  int64_t elems = segment.padded_elems;
  for (int j = 0; j < level; ++j) elems /= cuts[static_cast<size_t>(j)].ranks;
  return elems;
}

PlanAxis PlanRun::All() const {
  const PlanLink& inner = options_.shard_link;
  const PlanLink& outer = options_.replicate_link;
  PlanAxis all{options_.shard_ranks * options_.replicate_ranks, {}};
  all.link.latency_seconds = std::max(inner.latency_seconds, outer.latency_seconds);
  all.link.bytes_per_second = std::min(inner.bytes_per_second, outer.bytes_per_second);
  if (options_.replicate_ranks == 1) all.link = inner;
  if (options_.shard_ranks == 1) all.link = outer;
  return all;
}

// In the order in which ShardContext cuts: what cuts the parameters first, the optimizer last.
void PlanRun::CutAxes(UnitRun& run) const {
  struct Given {
    const AxisPlacement* placement;
    PlanAxis axis;
  };
  const Given given[] = {
      {&run.unit->stage.shard, {options_.shard_ranks, options_.shard_link}},
      {&run.unit->stage.replicate, {options_.replicate_ranks, options_.replicate_link}}};
  const auto cut_by = [&](auto&& here) {
    for (const Given& g : given) {
      if (g.axis.ranks > 1 && here(*g.placement)) run.cuts.push_back(g.axis);
    }
    return run.levels();
  };
  run.parameter_level = cut_by([](const AxisPlacement& a) { return Cut(a.parameters); });
  run.gradient_level =
      cut_by([](const AxisPlacement& a) { return Cut(a.gradients) && !Cut(a.parameters); });
  cut_by([](const AxisPlacement& a) { return Cut(a.optimizer) && !Cut(a.gradients); });
  for (const Given& g : given) {
    if (g.axis.ranks > 1 && !Cut(g.placement->optimizer)) run.replicas.push_back(g.axis);
  }
  const bool parameters_are_cut =
      Cut(run.unit->stage.shard.parameters) || Cut(run.unit->stage.replicate.parameters);
  run.keeps_full = (run.parameter_level == 0 && run.levels() > 0) || !parameters_are_cut;
  run.keeps_part = run.parameter_level > 0 && run.parameter_level < run.levels();
}

// Bytes by what Ladder and GradientSums keep.
void PlanRun::Weigh(UnitRun& run) const {
  const int bottom = run.levels();
  const bool finishes = run.gradient_level < bottom || !run.replicas.empty();
  for (const Segment& s : run.segments) {
    const auto held = [&](int level, int64_t size) { return Held(run.Elems(s, level) * size); };
    // Owned pieces lie inside what is kept above them, where that has their dtype.
    const bool inside = (run.keeps_part || (run.keeps_full && bottom > 0)) && !s.casts;
    const int kept_level = run.keeps_part ? run.parameter_level : 0;
    run.owned += held(inside ? kept_level : bottom, s.own_size);
    if (run.keeps_part && !inside) run.kept += held(kept_level, s.gather_size);
    const bool copies = bottom > 0 || s.casts;
    if (copies && !run.keeps_full) run.copy += held(0, s.gather_size);
    if (copies && run.keeps_full && !inside) run.kept += held(0, s.gather_size);
    if (!s.trainable) continue;
    if (run.gradient_level > 0) run.whole_sums += held(0, s.own_size);
    if (finishes) run.cut_sums += held(run.gradient_level, s.own_size);
    run.done_sums += held(bottom, s.own_size);
    run.state += options_.optimizer_states * held(bottom, s.state_size);
  }
}

PlanRun::UnitRun PlanRun::Describe(const PlanUnit& unit, bool root) const {
  UnitRun run;
  run.unit = &unit;
  run.root = root;
  CutAxes(run);
  int pieces = 1;
  for (const PlanAxis& axis : run.cuts) pieces *= axis.ranks;
  const Layout layout(EntriesOf(unit.parameters), pieces);
  int64_t elems = 0;
  for (const LayoutSegment& plan : layout.segments()) {
    elems += plan.elems;
    const bool casts = IsFloating(plan.dtype);
    Segment s;
    s.casts = casts && unit.precision.parameters.value_or(plan.dtype) != plan.dtype;
    s.padded_elems = plan.padded_elems(pieces);
    s.trainable = plan.trainable;
    s.own_size = SizeOf(plan.dtype);
    s.gather_size = SizeOf(casts ? unit.precision.parameters.value_or(plan.dtype) : plan.dtype);
    s.wire_size = SizeOf(casts ? unit.precision.reduce.value_or(plan.dtype) : plan.dtype);
    s.state_size = SizeOf(options_.optimizer_dtype.value_or(plan.dtype));
    run.segments.push_back(s);
  }
  Weigh(run);
  const double flops = unit.forward_flops > 0.0 ? unit.forward_flops
                                                : 2.0 * static_cast<double>(elems) *
                                                      static_cast<double>(options_.tokens);
  if (options_.flops_per_second > 0.0) run.forward_seconds = flops / options_.flops_per_second;
  return run;
}

void PlanRun::Hold(MemoryCategory category, int64_t bytes) {
  const auto c = static_cast<size_t>(category);
  held_[c] += bytes;
  phase_->peak_bytes[c] = std::max(phase_->peak_bytes[c], held_[c]);
  const int64_t total = std::accumulate(held_.begin(), held_.end(), int64_t{0});
  phase_->total_peak_bytes = std::max(phase_->total_peak_bytes, total);
}

template <typename Body>
void PlanRun::In(PlanPhase& phase, const Body& body) {
  phase_ = &phase;
  for (int c = 0; c < kMemoryCategories; ++c) Hold(static_cast<MemoryCategory>(c), 0);
  const double start = now_;
  body();
  phase.seconds += now_ - start;
}

double PlanRun::Send(EventOp op, const PlanAxis& axis, int64_t bytes) {
  const int rounds = (axis.ranks - 1) * (op == EventOp::kAllReduce ? 2 : 1);
  const int64_t sent = bytes / axis.ranks * rounds;
  double seconds = rounds * axis.link.latency_seconds;
  if (axis.link.bytes_per_second > 0.0)
    seconds += static_cast<double>(sent) / axis.link.bytes_per_second;
  PlanCollectives& figures = phase_->collectives[static_cast<size_t>(op)];
  ++figures.count;
  figures.bytes += bytes;
  figures.sent_bytes += sent;
  figures.seconds += seconds;
  link_free_ = std::max(link_free_, now_) + seconds;
  return link_free_;
}

void PlanRun::WaitUntil(double time) {
  if (time <= now_) return;
  phase_->exposed_seconds += time - now_;
  now_ = time;
}

void PlanRun::Compute(double seconds) {
  phase_->compute_seconds += seconds;
  now_ += seconds;
}

// As Ladder climbs: from the highest that is kept and not stale, one collective for each axis. A
// whole that is kept is gathered when it is stale only.
void PlanRun::StartGather(UnitRun& unit) {
  unit.gathered = true;
  unit.ready = now_;
  if (!unit.holds_kept) Hold(MemoryCategory::kParameterShard, unit.kept);
  unit.holds_kept = true;
  Hold(MemoryCategory::kUnsharded, unit.copy);
  int from = unit.levels();
  if (!unit.stale && unit.keeps_part) from = unit.parameter_level;
  unit.stale = false;
  for (int level = from; level > 0; --level) {
    for (const Segment& s : unit.segments) {
      unit.ready = Send(EventOp::kAllGather, unit.cuts[static_cast<size_t>(level - 1)],
                        unit.Elems(s, level - 1) * s.gather_size);
    }
  }
}

bool PlanRun::Prefetch(UnitRun& unit) {
  if (unit.ahead) return true;
  if (All().ranks == 1) return false;
  if (unit.gathered && !(unit.keeps_full && unit.stale)) return false;
  StartGather(unit);
  unit.ahead = true;
  return true;
}

// As Unit and Prefetcher do: what followed this gather the last time is started now.
void PlanRun::Gather(UnitRun& unit) {
  const bool current = unit.gathered && !(unit.keeps_full && unit.stale);
  const bool ahead = std::exchange(unit.ahead, false);
  if (current && !ahead) return;
  if (!current) StartGather(unit);
  now_seen_.push_back(static_cast<size_t>(&unit - units_.data()));
  const std::vector<size_t>& order = seen_[backward_cycle_];
  const size_t next = now_seen_.size();
  const size_t end = std::min(order.size(), next + static_cast<size_t>(unit.unit->prefetch));
  for (size_t k = next; k < end && Prefetch(units_[order[k]]); ++k) continue;
  WaitUntil(unit.ready);
}

void PlanRun::Reshard(UnitRun& unit) {
  if (!unit.gathered || unit.keeps_full) return;
  Hold(MemoryCategory::kUnsharded, -unit.copy);
  unit.gathered = unit.ahead = false;
}

void PlanRun::BeginCycle(bool backward) {
  backward_cycle_ = backward;
  now_seen_.clear();
}

void PlanRun::EndCycle() { seen_[backward_cycle_] = now_seen_; }

void PlanRun::ForwardCall(UnitRun& unit) {
  Gather(unit);
  Compute(unit.forward_seconds);
  Hold(MemoryCategory::kActivation, unit.unit->activation_bytes);
  if (unit.unit->reshard_after_forward.value_or(!unit.root)) Reshard(unit);
}

// Before a step the ranks agree on its micro-batches and items: a number from each, and a sum.
void PlanRun::Agree() {
  const PlanAxis all = All();
  const int64_t slots = int64_t{all.ranks} + 1;
  if (all.ranks > 1)
    WaitUntil(Send(EventOp::kAllReduce, all, slots * static_cast<int64_t>(sizeof(int64_t))));
}

void PlanRun::Forward() {
  BeginCycle(/*backward=*/false);
  UnitRun& root = units_.back();
  Gather(root);
  for (UnitRun& unit : units_) {
    for (int64_t call = 0; call < unit.unit->calls; ++call) ForwardCall(unit);
  }
  EndCycle();
}

void PlanRun::WaitReductions(size_t in_flight) {
  while (reductions_.size() > in_flight) {
    WaitUntil(reductions_.front().done);
    Hold(MemoryCategory::kGradient, -reductions_.front().whole_bytes);
    Hold(MemoryCategory::kGradientShard, -reductions_.front().cut_bytes);
    reductions_.pop_front();
  }
}

void PlanRun::BeginBackward(UnitRun& unit) {
  Gather(unit);
  WaitReductions(1);
  Hold(MemoryCategory::kGradient, unit.whole_sums);
  if (unit.gradient_level == 0) TakeSums(unit);
  Compute(unit.forward_seconds * (unit.unit->recompute ? 3.0 : 2.0));
}

// The sums that calls are reduced into, or write themselves where no axis cuts the gradients.
void PlanRun::TakeSums(UnitRun& unit) {
  bool& holds = unit.cut_sums > 0 ? unit.holds_cut : unit.holds_done;
  if (!holds)
    Hold(MemoryCategory::kGradientShard, unit.cut_sums > 0 ? unit.cut_sums : unit.done_sums);
  holds = true;
}

// As GradientSums moves whole sums into cut ones and, to finish, those into the done ones.
void PlanRun::Reduce(UnitRun& unit, bool finish) {
  Reduction reduction{unit.whole_sums, 0, now_};
  bool moves = unit.gradient_level > 0;
  TakeSums(unit);
  const bool finishes = finish && unit.cut_sums > 0;
  for (const Segment& s : unit.segments) {
    if (!s.trainable) continue;
    for (int level = 0; level < (finishes ? unit.levels() : unit.gradient_level); ++level) {
      reduction.done = Send(EventOp::kReduceScatter, unit.cuts[static_cast<size_t>(level)],
                            unit.Elems(s, level) * s.wire_size);
    }
    for (const PlanAxis& axis : unit.replicas) {
      if (finishes)
        reduction.done =
            Send(EventOp::kAllReduce, axis, unit.Elems(s, unit.levels()) * s.wire_size);
    }
  }
  if (finishes) {
    // The same pieces with nothing to add to become the done sums; what was there before goes.
    const bool renames = unit.gradient_level == unit.levels() && !unit.has_sum;
    if (renames && unit.holds_done) Hold(MemoryCategory::kGradientShard, -unit.done_sums);
    if (!renames && !unit.holds_done) Hold(MemoryCategory::kGradientShard, unit.done_sums);
    if (!renames) reduction.cut_bytes = unit.cut_sums;
    unit.holds_done = unit.has_sum = moves = true;
    unit.holds_cut = false;
  }
  if (moves) reductions_.push_back(reduction);
}

void PlanRun::EndBackward(UnitRun& unit, bool finish) {
  Hold(MemoryCategory::kActivation, -unit.unit->activation_bytes);
  if (unit.done_sums > 0) Reduce(unit, finish);
  Reshard(unit);
}

void PlanRun::Backward(bool finish) {
  BeginCycle(/*backward=*/true);
  UnitRun& root = units_.back();
  BeginBackward(root);
  for (size_t i = units_.size() - 1; i-- > 0;) {
    for (int64_t call = 0; call < units_[i].unit->calls; ++call) {
      BeginBackward(units_[i]);
      EndBackward(units_[i], finish);
    }
  }
  EndBackward(root, finish);
  for (UnitRun& unit : units_) Reshard(unit);
  EndCycle();
}

// The verdict is one small all-reduce over all ranks: three numbers and a bit for each parameter.
void PlanRun::Finish() {
  WaitReductions(0);
  int64_t slots = 3;
  for (const UnitRun& unit : units_) slots += static_cast<int64_t>(unit.unit->parameters.size());
  const PlanAxis all = All();
  if (all.ranks > 1)
    WaitUntil(Send(EventOp::kAllReduce, all, slots * static_cast<int64_t>(sizeof(double))));
  for (UnitRun& unit : units_) {
    unit.stale = unit.stale || unit.done_sums > 0;
    unit.has_sum = false;
  }
}

Plan PlanRun::Run() {
  Plan plan;
  In(plan.init, [&] {
    for (const UnitRun& unit : units_) Hold(MemoryCategory::kParameterShard, unit.owned);
  });
  for (int round = 0; round < 2; ++round) {
    plan.forward = plan.backward = plan.step = PlanPhase{};
    In(plan.forward, [&] { Agree(); });
    for (int64_t k = 0; k < options_.micro_batches; ++k) {
      In(plan.forward, [&] { Forward(); });
      In(plan.backward, [&] { Backward(k + 1 == options_.micro_batches); });
    }
    In(plan.step, [&] {
      Finish();
      for (const UnitRun& unit : units_) {
        if (round == 0) Hold(MemoryCategory::kOptimizer, unit.state);
      }
      // Where finishing only renames sums, the memory of the done ones goes with them.
      for (UnitRun& unit : units_) {
        const bool renames = unit.cut_sums > 0 && unit.gradient_level == unit.levels();
        if (!renames || !std::exchange(unit.holds_done, false)) continue;
        Hold(MemoryCategory::kGradientShard, -unit.done_sums);
      }
    });
  }
  return plan;
}

}  // namespace sherd::internal
