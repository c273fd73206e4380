#include "sherd/runtime/comm/launch.h"

#include <cstdlib>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sherd {
namespace {

constexpr size_t kMaxSecretBytes = 200;

// Reads variables and keeps the first complaint.
class Variables {
 public:
  explicit Variables(const GetEnv& get) : get_(get) {}

  // An empty value counts as unset: shells and job files leave such behind.
  bool Has(const char* name) const { return !Text(name).empty(); }

  std::string Text(const char* name) const { return get_(name).value_or(""); }

  int Number(const char* name) {
    const std::string text = Text(name);
    int value = 0;
    if (text.empty()) {
      Complain(absl::StrCat(name, " is not set"));
    } else if (!absl::SimpleAtoi(text, &value) || value < 0) {
      Complain(absl::StrCat(name, " is '", text, "', not a number from 0 on"));
    }
    return value;
  }

  // Whether both are set. One without the other is an error.
  bool HasBoth(const char* a, const char* b) {
    const bool has_a = Has(a);
    const bool has_b = Has(b);
    if (has_a != has_b) {
      const char* set = has_a ? a : b;
      Complain(absl::StrCat(set, " is '", Text(set), "', but ", has_a ? b : a,
                            " is not set: set both or neither"));
    }
    return has_a && has_b;
  }

  // Reads `index` < `count`.
  void Position(const char* index_name, const char* count_name, int& index, int& count) {
    index = Number(index_name);
    count = Number(count_name);
    if (status_.ok() && index >= count) {
      Complain(absl::StrCat(index_name, " is ", index, ", but ", count_name, " is ", count));
    }
  }

  // Position of this rank among all and, where the launcher says so, on its host.
  void Ranks(const char* rank, const char* size, const char* local_rank, const char* local_size,
             LaunchInfo& info) {
    Position(rank, size, info.rank, info.size);
    info.local_known = HasBoth(local_rank, local_size);
    if (!info.local_known) return;
    Position(local_rank, local_size, info.local_rank, info.local_size);
    if (status_.ok() && info.local_size > info.size) {
      Complain(
          absl::StrCat(local_size, " is ", info.local_size, ", but ", size, " is ", info.size));
    }
  }

  void Complain(const std::string& text) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("launch environment: ", text));
    }
  }
  const absl::Status& status() const { return status_; }

 private:
  const GetEnv& get_;
  absl::Status status_;
};

// The tasks on node `node` by Slurm's "2(x3),1", or 0 when that does not say.
int TasksOnNode(const std::string& text, int node) {
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits("(x", 1));
    int tasks = 0;
    int nodes = 1;
    if (!absl::SimpleAtoi(pair.first, &tasks)) return 0;
    if (!pair.second.empty() &&
        (pair.second.back() != ')' ||
         !absl::SimpleAtoi(pair.second.substr(0, pair.second.size() - 1), &nodes))) {
      return 0;
    }
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return 0;
}

void ReadSlurm(Variables& v, LaunchInfo& info) {
  info.launcher = Launcher::kSlurm;
  v.Position("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", info.rank, info.size);
  info.job_id = absl::StrCat(v.Text("SLURM_JOB_ID"), ".", v.Text("SLURM_STEP_ID"));
  info.local_known = false;
  if (!v.Has("SLURM_LOCALID") || !v.Has("SLURM_NODEID")) return;
  const int tasks = TasksOnNode(v.Text("SLURM_STEP_TASKS_PER_NODE"), v.Number("SLURM_NODEID"));
  const int local_rank = v.Number("SLURM_LOCALID");
  if (tasks == 0) return;
  if (local_rank >= tasks) {
    v.Complain(absl::StrCat("SLURM_LOCALID is ", local_rank, ", but SLURM_STEP_TASKS_PER_NODE is '",
                            v.Text("SLURM_STEP_TASKS_PER_NODE"), "'"));
  }
  info.local_known = true;
  info.local_rank = local_rank;
  info.local_size = tasks;
}

// A single process is what is left when no set of variables is known. Refuses that when a launcher
// has started several: each would train alone, and all would write the same files.
void RefuseToBeAlone(Variables& v) {
  for (const char* rank : {"PMIX_RANK", "LOCAL_RANK"}) {
    // LOCAL_RANK=0 may be left over in a shell.
    if (!v.Has(rank) || (rank[0] == 'L' && v.Number(rank) == 0)) continue;
    v.Complain(absl::StrCat(rank, " is ", v.Text(rank),
                            ", but no variable tells the number of ranks: set RANK, WORLD_SIZE, ",
                            "MASTER_ADDR and MASTER_PORT"));
  }
  if (v.Has("SLURM_PROCID") && v.Number("SLURM_PROCID") != 0) {
    v.Complain(absl::StrCat("SLURM_PROCID is ", v.Text("SLURM_PROCID"),
                            ", but SLURM_STEP_NUM_TASKS is not set: start the ranks with srun"));
  }
  // Launchers whose variables are not read, and those that tell how many ranks share this host.
  for (const char* count : {"MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE",
                            "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
    if (!v.Has(count) || v.Number(count) <= 1) continue;
    v.Complain(absl::StrCat(count, " is ", v.Text(count),
                            ", but this process knows of itself alone: set RANK, WORLD_SIZE, ",
                            "MASTER_ADDR and MASTER_PORT"));
  }
}

// Agents of torchrun that an mpirun or srun started, but that were told of one host each.
void WarnOfLoneAgents(Variables& v, LaunchInfo& info) {
  for (const char* count : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    if (!v.Has(count) || !v.Has("GROUP_WORLD_SIZE")) continue;
    const int groups = v.Number("GROUP_WORLD_SIZE");
    if (groups != 1 || v.Number(count) <= groups) continue;
    info.warnings.push_back(absl::StrCat(
        count, " is ", v.Text(count), ", but this torchrun knows of one host (GROUP_WORLD_SIZE is ",
        "1): each agent trains by itself; --nnodes joins them"));
    return;
  }
}

// RANK and WORLD_SIZE set by hand inside an mpirun must mean the same ranks. Under torchrun they
// need not: mpirun may have started its agents, one a host.
void CheckAgainst(const char* rank, const char* size, const LaunchInfo& info, Variables& v) {
  if (!v.Has(rank) || !v.Has(size)) return;
  if (v.Number(rank) == info.rank && v.Number(size) == info.size) return;
  v.Complain(absl::StrCat("RANK and WORLD_SIZE are ", info.rank, " and ", info.size, ", but ", rank,
                          " and ", size, " are ", v.Text(rank), " and ", v.Text(size)));
}

void ReadLauncher(Variables& v, LaunchInfo& info) {
  if (v.HasBoth("RANK", "WORLD_SIZE")) {
    info.launcher = Launcher::kTorchrun;
    v.Ranks("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", info);
    info.job_id = v.Text("TORCHELASTIC_RUN_ID");
    info.agent_store = v.Text("TORCHELASTIC_USE_AGENT_STORE") == "True";
    if (v.Has("TORCHELASTIC_RESTART_COUNT")) info.restart = v.Number("TORCHELASTIC_RESTART_COUNT");
    if (!v.Has("TORCHELASTIC_RUN_ID")) {
      CheckAgainst("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", info, v);
      CheckAgainst("PMI_RANK", "PMI_SIZE", info, v);
      // A task of srun may start several ranks, but not fewer than one.
      if (v.Has("SLURM_STEP_NUM_TASKS") && v.Number("SLURM_STEP_NUM_TASKS") > info.size) {
        CheckAgainst("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", info, v);
      }
    } else {
      WarnOfLoneAgents(v, info);
    }
  } else if (v.HasBoth("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")) {
    info.launcher = Launcher::kOpenMpi;
    v.Ranks("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE", info);
    info.job_id = v.Text("PMIX_NAMESPACE");
  } else if (v.HasBoth("PMI_RANK", "PMI_SIZE")) {
    info.launcher = Launcher::kMpich;
    v.Ranks("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", info);
  } else if (v.Has("SLURM_STEP_NUM_TASKS")) {
    // Set by srun only. A batch script has SLURM_PROCID and SLURM_NTASKS too, but runs alone.
    ReadSlurm(v, info);
  } else {
    RefuseToBeAlone(v);
    if (v.Has("SLURM_NTASKS") && v.Text("SLURM_NTASKS") != "1") {
      info.warnings.push_back(
          absl::StrCat("SLURM_NTASKS is ", v.Text("SLURM_NTASKS"),
                       ", but this process was not started by srun: it is a single process"));
    }
  }
}

}  // namespace

const char* NameOf(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "no launcher";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kOpenMpi:
      return "OpenMPI";
    case Launcher::kMpich:
      return "MPICH";
    case Launcher::kSlurm:
      return "Slurm";
  }
  return "an unknown launcher";
}

// "[::1]", as in a URL, is ::1.
std::string WithoutBrackets(const std::string& address) {
  const bool bracketed = address.size() > 2 && address.front() == '[' && address.back() == ']';
  return bracketed ? address.substr(1, address.size() - 2) : address;
}

absl::StatusOr<LaunchInfo> ParseLaunch(const GetEnv& get) {
  Variables v(get);
  LaunchInfo info;
  ReadLauncher(v, info);
  if (info.launcher != Launcher::kNone && v.HasBoth("MASTER_ADDR", "MASTER_PORT")) {
    info.master_address = WithoutBrackets(v.Text("MASTER_ADDR"));
    info.master_port = v.Number("MASTER_PORT");
    if (v.status().ok() && (info.master_port < 1 || info.master_port > 65535)) {
      v.Complain(absl::StrCat("MASTER_PORT is ", info.master_port, ", not a port"));
    }
  }
  info.own_address = WithoutBrackets(v.Text("SHERD_ADDRESS"));
  info.secret = v.Text("SHERD_SECRET");
  if (info.secret.size() > kMaxSecretBytes) {
    v.Complain(absl::StrCat("SHERD_SECRET has ", info.secret.size(), " bytes; at most ",
                            kMaxSecretBytes, " are allowed"));
  }
  info.error_file = v.Text("TORCHELASTIC_ERROR_FILE");
  info.nccl_host = v.Text("NCCL_HOSTID");
  if (v.Has("TMPDIR")) info.temp_directory = v.Text("TMPDIR");
  if (!v.status().ok()) return v.status();
  return info;
}

GetEnv ProcessEnvironment() {
  return [](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

}  // namespace sherd
