#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sherd/autograd/op.h"
#include "sherd/checkpoint/policy.h"

namespace sherd {

namespace internal {
class BudgetLease;
}  // namespace internal

// What a MemoryBudget did so far.
struct BudgetReport {
  int64_t budget_bytes = 0;
  int64_t used_bytes = 0;  // reserved now
  int64_t peak_bytes = 0;  // the most that was reserved at once; at most budget_bytes
  int64_t rounds = 0;      // see MemoryBudget
  int64_t plans = 0;       // made so far
  // Of the last plan: what it keeps, and of the repeated work, in FLOPs (memory traffic converted),
  // what is left of what a round would repeat without it.
  int64_t planned_ops = 0;
  int64_t planned_bytes = 0;
  double planned_cost = 0.0;
  double full_cost = 0.0;

  // One line for a log.
  std::string ToString() const;
};

// Chooses what the checkpoints of a model keep, so that what they hold at once never exceeds a
// number of bytes and the work that is left to repeat is small.
//
// One object is shared by all checkpoints of a model: CheckpointOptions::budget. A *round* begins
// with a checkpointed call while none waits for its backward, and ends when none does any more: one
// micro-batch, usually. In the first round, results are kept by a simple rule while the budget
// lasts: those CheckpointOptions::policy names, by default matrix products and attention. At its
// end a plan is made from what the calls of the whole round offered: greedily, next the op that
// saves most work for each byte, where work is what early stop would still compute. Later rounds
// follow the plan. A round with other calls or shapes keeps, while the budget lasts, what the plan
// thought worth its bytes, and is planned anew at its end.
//
// Deterministic: no clock; equal for all ranks that make the same calls. With an offload, the bytes
// count too while they are in host memory. Threads: one at a time.
class MemoryBudget {
 public:
  // What a FLOP costs against memory traffic: a byte read or written counts as this many.
  static constexpr double kFlopsPerByte = 16.0;

  // Errors: kInvalidArgument for a negative number.
  explicit MemoryBudget(int64_t bytes);
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  BudgetReport report() const { return report_; }

 private:
  friend class internal::BudgetLease;
  // The ops of one call, as a plan needs them.
  struct Region;
  struct Plan;

  bool Chooses(size_t region, const OpInfo& op, const KeepPolicy& first_rule);
  bool Reserve(int64_t bytes);
  void Release(int64_t bytes) { report_.used_bytes -= bytes; }
  void EndRound();

  BudgetReport report_;
  std::shared_ptr<Plan> plan_;  // null in the first round
  std::shared_ptr<std::vector<Region>> round_;
  int64_t live_ = 0;     // calls of this round that hold a lease
  size_t regions_ = 0;   // calls of this round so far
  bool follows_ = true;  // this round is the planned one, so far
};

}  // namespace sherd
