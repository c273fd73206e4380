#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "sherd/shard/plan.h"

namespace sherd::internal {

// One axis of the mesh, or the one over all ranks for small agreements.
struct PlanAxis {
  int ranks = 1;
  PlanLink link;
};

// A step of a plan in the making: clocks, what is held, and the state of every unit.
class PlanRun {
 public:
  PlanRun(const PlanModel& model, const PlanOptions& options);
  Plan Run();

 private:
  struct Segment {
    int64_t padded_elems = 0;
    bool trainable = true;
    bool casts = false;       // gathered in another dtype
    int64_t own_size = 0;     // bytes of an element: of shards and sums,
    int64_t gather_size = 0;  // of the gathered copy,
    int64_t wire_size = 0;    // and of gradients that are sent
    int64_t state_size = 0;
  };
  // Levels are those of axes.h: what the first n of `cuts` leave of the whole.
  struct UnitRun {
    const PlanUnit* unit = nullptr;
    bool root = false;
    std::vector<Segment> segments;
    std::vector<PlanAxis> cuts;
    std::vector<PlanAxis> replicas;
    int parameter_level = 0;
    int gradient_level = 0;
    bool keeps_full = false;  // the whole is there between calls
    bool keeps_part = false;  // and so is what the parameters' level leaves of it
    int64_t owned = 0;        // bytes held always
    int64_t kept = 0;         // from the first gather on
    int64_t copy = 0;         // of the whole while it is gathered
    int64_t whole_sums = 0;   // of a call's gradient buffer, if there is one beside the sums
    int64_t cut_sums = 0;     // at the gradients' level, if they are not done there
    int64_t done_sums = 0;
    int64_t state = 0;
    double forward_seconds = 0.0;
    bool gathered = false;
    bool ahead = false;
    bool stale = true;  // what is kept is older than what is owned
    bool holds_kept = false;
    bool holds_cut = false;
    bool holds_done = false;
    bool has_sum = false;  // in this window
    double ready = 0.0;    // when the last gather is done

    int levels() const { return static_cast<int>(cuts.size()); }
    int64_t Elems(const Segment& segment, int level) const;
  };
  struct Reduction {
    int64_t whole_bytes = 0;  // what it frees
    int64_t cut_bytes = 0;
    double done = 0.0;
  };

  UnitRun Describe(const PlanUnit& unit, bool root) const;
  void CutAxes(UnitRun& run) const;
  void Weigh(UnitRun& run) const;
  PlanAxis All() const;
  void Hold(MemoryCategory category, int64_t bytes);
  // Puts a collective on the link after what is there; returns when it is done.
  double Send(EventOp op, const PlanAxis& axis, int64_t bytes);
  void WaitUntil(double time);
  void Compute(double seconds);

  void StartGather(UnitRun& unit);
  bool Prefetch(UnitRun& unit);
  void Gather(UnitRun& unit);
  void Reshard(UnitRun& unit);
  void BeginCycle(bool backward);
  void EndCycle();
  void Agree();
  void Forward();
  void Backward(bool finish);
  void ForwardCall(UnitRun& unit);
  void BeginBackward(UnitRun& unit);
  void EndBackward(UnitRun& unit, bool finish);
  void TakeSums(UnitRun& unit);
  void Reduce(UnitRun& unit, bool finish);
  void WaitReductions(size_t in_flight);
  void Finish();
  // Runs `body` as a part of `phase`.
  template <typename Body>
  void In(PlanPhase& phase, const Body& body);

  const PlanOptions& options_;
  std::vector<UnitRun> units_;                // the root last
  std::map<bool, std::vector<size_t>> seen_;  // units gathered, in order, by direction
  std::vector<size_t> now_seen_;
  bool backward_cycle_ = false;
  std::deque<Reduction> reductions_;
  std::array<int64_t, kMemoryCategories> held_{};
  double now_ = 0.0;
  double link_free_ = 0.0;
  PlanPhase* phase_ = nullptr;
};

}  // namespace sherd::internal
