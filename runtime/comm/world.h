#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/runtime/base/log.h"
#include "sherd/runtime/comm/launch.h"
#include "sherd/runtime/comm/mesh.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/comm/store.h"
#include "sherd/runtime/core/device.h"

namespace sherd {

// What carries collectives on the memory of a CUDA device. Buffers of the host, agreements and
// barriers always go through Gloo, which finds ranks that end or fail.
enum class GroupDriver {
  kAuto,  // NCCL where each rank has a device of its own, else Gloo with a warning that says why
  kNccl,  // two ranks on one device are an error
  kGloo,  // through page-locked host memory: slow, but ranks may share a device
};

struct WorldOptions {
  // Where this rank computes, the same on all ranks. A CUDA device is opened before anything else
  // is asked of CUDA here, and no other device is touched.
  DeviceKind device = DeviceKind::kCpu;
  // Which of the CUDA devices this process sees. -1: the one of the local rank's number, for
  // launchers that show every process all devices; 0 where each sees its own alone.
  int cuda_index = -1;
  // The most memory of the CUDA device to take; 0: all there is. For ranks that share one.
  int64_t cuda_memory_bytes = 0;
  GroupDriver driver = GroupDriver::kAuto;
  // Compute threads of this rank. 0: the CPUs this process may use, divided by the ranks of its
  // host that may use the same ones, at least 1. OMP_NUM_THREADS is not read: torchrun sets it
  // to 1.
  int threads = 0;
  // Index of the CPU device. -1: 0, as each process sees its own.
  int device_index = -1;
  // Where the device's memory comes from; empty: a range of its own, with a cache.
  MemorySource memory = {};
  // How long to wait for all ranks to arrive. Raise it for jobs whose ranks start minutes apart.
  absl::Duration rendezvous_timeout = absl::Minutes(5);
  // Asked every 50 ms while ranks are waited for: whether to give up, as when the launcher has sent
  // SIGTERM (the signal's handler is the program's own). One that gives up ends the wait of all.
  std::function<bool()> should_stop;
  // How long one collective may take, the wait for slower ranks included.
  absl::Duration collective_timeout = absl::Minutes(10);
  // Messages are cut into pieces of this size, a multiple of 64 from 64 KiB on and the same on all
  // ranks. See GlooOptions.
  int64_t piece_bytes = int64_t{1} << 20;
  // Where messages go, each with this rank, whatever mesh it is about; silent by default.
  LogSink log;
  // The address other ranks reach this one at. "": loopback when all ranks share a host, otherwise
  // the address this host uses to reach the master.
  std::string address;
  // Which world of a store this is, from 0: each has keys of its own, so a store that outlives a
  // failed world serves the next. The same on all ranks, and higher than any before.
  int generation = 0;
  // Wraps the group before anybody sees it, e.g. in MakeRecordingGroup. For tests.
  std::function<std::shared_ptr<ProcessGroup>(std::shared_ptr<ProcessGroup>)> wrap_group;
};

// How survivors of a failed world come together.
struct RegroupOptions {
  // How long to wait for ranks to come. It ends at once when `expected_ranks` have come, so tell
  // that, when it is known, or every regrouping without a dead rank takes this long.
  absl::Duration wait = absl::Seconds(30);
  // 0: all ranks of the failed world.
  int expected_ranks = 0;
  // Fewer are an error on all that came. 0: more than half of the failed world's ranks, so that two
  // halves that cannot see each other do not both go on.
  int min_ranks = 0;
};

// All ranks of a job, seen from one of them: who we are, our device, and the group to talk through.
//
// An object the trainer makes and keeps; several may live in one process. Movable.
// Threads: one at a time for mesh, MakeMesh and Finish; the rest only reads. Its group has rules of
// its own, and can be aborted from anywhere.
// Ownership: meshes keep the group alive; the destructor leaves the rest in order.
class World {
 public:
  // Joins the job this process was started in: torchrun, mpirun, srun, or a single process.
  //
  // COLLECTIVE. Errors: kInvalidArgument for contradictory launch variables; kDeadlineExceeded
  // naming
  //   the ranks that did not arrive; kUnavailable when a connection broke; where a rank has no such
  //   CUDA device, what OpenCuda says, on all ranks, with the rank; those of ConnectNccl.
  static absl::StatusOr<World> FromEnvironment(WorldOptions options = {});

  // As FromEnvironment, for a caller that knows what the environment would say. Rank 0 logs what
  // Describe says, in either.
  static absl::StatusOr<World> FromLaunch(const LaunchInfo& launch, WorldOptions options = {});

  // Joins ranks that share `store`, which must hold no keys of another world of this generation.
  // For ranks that are threads, and for programs that have a way of their own to find each other.
  // With size 1 the store may be null.
  // COLLECTIVE. Errors: as FromEnvironment. REQUIRES: 0 <= rank < size.
  static absl::StatusOr<World> FromStore(std::shared_ptr<Store> store, int rank, int size,
                                         WorldOptions options = {});

  World(World&&) noexcept;
  World& operator=(World&&) noexcept;
  // Leaves without waiting for the others. Peers that still communicate with us fail, naming us:
  // call Finish first when all went well.
  ~World();

  int rank() const;
  int size() const;
  int local_rank() const;
  int local_size() const;
  const Device& device() const;
  ProcessGroup& group() const;
  // Counts the worlds that one store has served, from 0.
  int generation() const;
  // A name space shared by all ranks.
  Store& store() const;
  const LogSink& log() const;
  // All ranks on the shard axis.
  Mesh mesh() const;
  // Copies of the parameters, each cut over `shard_size` ranks: ranks with equal
  // rank / shard_size form a shard group, ranks with equal rank % shard_size a replicate group.
  // With shard_size == size() this is mesh(). The same mesh for all callers, as mesh() is.
  //
  // COLLECTIVE. Threads: one caller at a time. Cost: two splits the first time.
  // Errors (thrown): kInvalidArgument unless shard_size divides size(); those of a collective.
  Mesh MakeMesh(int shard_size) const;

  // Forms a new world in the same process, of the ranks of this one that call this: after a
  // failure, to go on without a restart. Ranks keep their order and are counted anew from 0. What
  // belongs to this world (group, meshes, sharded models) is dead; it may be destroyed before or
  // after.
  //
  // COLLECTIVE among the survivors. Aborts this world's group if it has not failed. The store must
  // have survived: one that rank 0 serves goes with rank 0, and one given to FromStore is the
  // program's. Options are those this world was made with, `generation` is the next one; a second
  // try takes the one after.
  // Errors: kFailedPrecondition naming the ranks that came when they are too few, and on a rank
  //   that came too late; kUnavailable when the store is gone; then those of FromStore.
  absl::StatusOr<World> Regroup(const RegroupOptions& options = {});

  // Waits for every rank, then leaves. Afterwards the group refuses collectives. No effect the
  // second time.
  // COLLECTIVE. Errors: the first error of the group, if it had failed.
  absl::Status Finish();

 private:
  friend std::string Describe(const World& world);
  struct State;
  static absl::StatusOr<World> Meet(const LaunchInfo& launch, WorldOptions options);
  // `hosts` is 0 where nobody counted them.
  static absl::StatusOr<World> Join(const std::shared_ptr<Store>& store, const LaunchInfo& launch,
                                    int hosts, int cpu_sharers, WorldOptions options);
  explicit World(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

// One line about the job as this rank sees it: the library's version and what it was built with,
// rank and ranks, hosts where the ranks met through a launch, launcher, device, threads, driver.
// Reports of failed steps carry it.
std::string Describe(const World& world);

}  // namespace sherd
