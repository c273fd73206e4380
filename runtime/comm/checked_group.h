#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>

#include "sherd/runtime/comm/process_group.h"

namespace sherd {

// Switches the checks of a checked group, its forks and its parts, and counts them.
//
// Threads: safe. One object for each rank.
class CallChecks {
 public:
  // Turns comparing on or off, from the next call on.
  // COLLECTIVE in that every rank does it between the same calls; nothing is sent.
  void SetChecking(bool on) { checking_ = on; }
  bool checking() const { return checking_; }
  // How many calls of this rank have been compared so far.
  int64_t compared() const { return compared_; }
  // Counts one; what MakeCheckedGroup's groups do.
  void Count() { ++compared_; }

 private:
  std::atomic<bool> checking_{true};
  std::atomic<int64_t> compared_{0};
};

struct CheckOptions {
  // The first so many calls of the group, and of each of its forks and parts, are compared; later
  // ones cost nothing. A loop that calls the same in every step is known after a few steps. The
  // same on all ranks.
  int64_t calls = std::numeric_limits<int64_t>::max();
  // To turn it off later on; may be null.
  std::shared_ptr<CallChecks> checks;
};

// Wraps `inner` so that ranks compare what they are about to call, and nothing is sent when they
// call different things: another op, caller (ErrorContext::module_path, where both say one), number
// of bytes, dtype, root, or number of the call. For groups that would hang, or mix up data; Gloo's
// compares by itself.
//
// What it cannot see: ranks that call on different forks; they wait until the inner group's
// deadline. The comparison runs on a fork of its own, "check".
// Ownership: shares `inner`. Threads: as `inner`.
// COLLECTIVE: forks `inner`, and a part tells its ranks' numbers.
// Cost: an all_gather of 112 bytes a rank before each call that is compared.
// Errors: kFailedPrecondition on all ranks, naming the first two calls that differ, after which the
//   group, its forks and its parts are aborted.
std::unique_ptr<ProcessGroup> MakeCheckedGroup(std::shared_ptr<ProcessGroup> inner,
                                               CheckOptions options = {});

}  // namespace sherd
