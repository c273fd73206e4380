#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "sherd/autograd/internal/region.h"
#include "sherd/checkpoint/budget.h"

namespace sherd::internal {

// What one checkpointed call has reserved of a budget, from its first pass to its backward.
class BudgetLease {
 public:
  explicit BudgetLease(std::shared_ptr<MemoryBudget> budget);
  ~BudgetLease();
  BudgetLease(const BudgetLease&) = delete;
  BudgetLease& operator=(const BudgetLease&) = delete;

  // Whether to keep the results of `op`; reserves their bytes then.
  bool Keeps(const OpInfo& op, const KeepPolicy& first_rule);
  // After the first pass: gives back what was not kept in the end, and offers the call's ops to the
  // plan.
  void Settle(const RegionNotes& notes, bool early_stop);

 private:
  std::shared_ptr<MemoryBudget> budget_;
  size_t region_;
  int64_t bytes_ = 0;
  bool settled_ = false;
};

}  // namespace sherd::internal
