#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sherd {

// Who started this process.
enum class Launcher { kNone, kTorchrun, kOpenMpi, kMpich, kSlurm };

// "torchrun", "OpenMPI", ...
const char* NameOf(Launcher launcher);

// What a launcher tells a process through its environment.
struct LaunchInfo {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int size = 1;
  // Among the ranks on this host. When the launcher gave no such numbers, `local_known` is false
  // and the two are 0 and 1.
  int local_rank = 0;
  int local_size = 1;
  bool local_known = true;
  std::string job_id;          // the same on all ranks of a launch, "" when the launcher gives none
  int restart = 0;             // which attempt of the launcher this is, from 0
  std::string master_address;  // "" when unset
  int master_port = 0;         // 0 when unset
  bool agent_store = false;    // torchrun's agent serves a store at the master address
  std::string own_address;     // where peers reach this rank, "" when unset
  std::string secret;          // keeps strangers out, "" when unset; at most 200 bytes
  std::string temp_directory = "/tmp";
  // Where torchrun's agent looks for what a failed process has to say (see failure_file.h), "" when
  // unset.
  std::string error_file;
  // What host NCCL is told that this is, "" when it finds out: two ranks of one host may not share
  // a device.
  std::string nccl_host;
  std::vector<std::string> warnings;  // what looks like a mistake but may be meant

  // Whether all ranks are known to share this host.
  bool one_host() const { return local_known && local_size == size; }
};

// Looks up an environment variable: nothing when it is not set.
using GetEnv = std::function<std::optional<std::string>(const char* name)>;

// Reads who we are from the variables of torchrun (or any launcher that sets RANK and WORLD_SIZE),
// OpenMPI, MPICH or a Slurm step, in this order; a single process when there are none of these.
//
// The only place that knows names of environment variables; runtime/comm/README.md lists them.
// Threads: safe; reads through `get` alone.
// Errors: kInvalidArgument naming the variables and their values when a set is incomplete, is not
//   made of numbers or contradicts itself or another set, and when a launcher has started several
//   processes but none of the sets says so: each would train alone.
absl::StatusOr<LaunchInfo> ParseLaunch(const GetEnv& get);

// The variables of this process.
GetEnv ProcessEnvironment();

}  // namespace sherd
