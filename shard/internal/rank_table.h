#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sherd/runtime/base/call_site.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/core/device.h"

namespace sherd::internal {

// Some numbers of every rank, which all ranks have then: what they agree on before they exchange
// rows, so that an argument that is wrong on one is the same error on all.
class RankTable {
 public:
  // Gathers `mine`. An op like any other: a checkpointed region keeps what it gave, and a recompute
  // sends nothing. COLLECTIVE: as many numbers on all ranks. `op` names it in messages, and is a
  // literal.
  RankTable(std::span<const int64_t> mine, ProcessGroup& group, const Device& device,
            const char* op, CallSite site);

  int ranks() const { return static_cast<int>(values_.size() / fields_); }
  int64_t at(int rank, size_t field) const {
    return values_[static_cast<size_t>(rank) * fields_ + field];
  }
  // A field of all ranks.
  std::vector<int64_t> Column(size_t field) const;
  int64_t Sum(size_t field) const;
  // The first rank whose field is not that of rank 0; -1: all agree.
  int Differs(size_t field) const;
  // The first rank whose field is not 0; -1: none.
  int NotZero(size_t field) const;

 private:
  size_t fields_;
  std::vector<int64_t> values_;
};

}  // namespace sherd::internal
