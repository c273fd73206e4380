#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace sherd {

// Who started this process.
enum class Launcher { kNone, kTorchrun, kOpenMpi, kMpich, kPmix, kSlurm };

// "torchrun", "OpenMPI's mpirun", ...
const char* NameOf(Launcher launcher);

// What a launcher tells a process through its environment.
struct LaunchInfo {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int size = 1;
  int local_rank = 0;      // among the ranks on this host
  int local_size = 1;
  bool local_known = true; // false: the launcher gave no local numbers, the two above are guesses
  std::string job_id;      // the same on all ranks of a launch, "" when the launcher gives none
  std::string master_address;  // MASTER_ADDR, "" when unset
  int master_port = 0;         // MASTER_PORT, 0 when unset
  bool agent_store = false;    // torchrun's agent serves a store at the master address
  int restart = 0;             // which attempt of the launcher this is, from 0
  std::string address;         // SHERD_ADDRESS: where peers reach this rank, "" when unset

  bool one_host() const { return local_known && local_size == size; }
};

// Looks up an environment variable: nothing when it is not set.
using GetEnv = std::function<std::optional<std::string>(const char* name)>;

// Reads rank and size from the variables of torchrun (or any launcher that sets RANK and WORLD_SIZE),
// OpenMPI, MPICH, PMIx or a Slurm step, in this order; a single process when there are none.
//
// This is the only place that knows names of environment variables. Pure: reads through `get` alone.
// Errors: kInvalidArgument naming the variables and their values when a set is incomplete, not a
//   number or contradicts itself (rank >= size, local size > size).
absl::StatusOr<LaunchInfo> ParseLaunch(const GetEnv& get);

// The variables of this process.
GetEnv ProcessEnvironment();

}  // namespace sherd
