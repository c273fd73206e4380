#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/runtime/comm/internal/arrival.h"
#include "sherd/runtime/comm/launch.h"
#include "sherd/runtime/comm/store.h"

namespace sherd::internal {

// Where the ranks of one launch have met.
struct Meeting {
  std::shared_ptr<Store> store;  // of this launch alone: no earlier attempt has written to it
  std::string address;           // where peers reach this rank
  int local_rank = 0;
  int local_size = 1;
  int hosts = 1;        // that ranks run on, told apart by name and boot
  int cpu_sharers = 1;  // ranks that may use the same CPUs as this one, itself included
  std::vector<std::string> warnings;  // what the user should know, each a sentence
};

// Brings all ranks of a launch of several together in a store that rank 0 serves.
//
// The others learn its port and secret from torchrun's agent store, from a file only this user can
// write (all ranks on one host), or know them: MASTER_ADDR, MASTER_PORT and a secret. Whoever finds
// the store of an earlier attempt is refused there and looks again. Rank 0 listens on loopback
// alone when all ranks share its host, otherwise on the addresses by which peers come. COLLECTIVE.
// Errors: kDeadlineExceeded naming the ranks that did not arrive; kCancelled when told to stop;
//   kFailedPrecondition when nothing tells ranks on several hosts where to meet. After all of them
//   no file is left behind.
absl::StatusOr<Meeting> Meet(const LaunchInfo& launch, const Patience& patience);

// The name of this host, another one after each of its starts.
std::string HostKey();

// A secret for one store: 128 random bits, in hexadecimal.
std::string RandomSecret();

// How many CPUs this process may use.
int UsableCpus();

}  // namespace sherd::internal
