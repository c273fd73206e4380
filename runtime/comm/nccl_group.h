#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/core/device.h"

namespace sherd {

struct NcclOptions {
  // How long one collective may take from when the one before it in its group is done, the wait for
  // slower ranks included, and the wait for work of this device that was queued before.
  absl::Duration timeout = absl::Minutes(10);
  // The most device memory (MemoryCategory::kStaging) that each group, fork and part keeps for
  // reductions that are not NCCL's own; larger ones go in pieces. The same on all ranks.
  int64_t staging_bytes = int64_t{64} << 20;
  // All sums in rank order, as our other groups take them, so that a rerun has the same bits.
  // Costs all-to-all instead of NCCL's reductions, which may use the switch.
  bool rank_order = false;
  // What host this is: two ranks of one host may not share a device. "": found out. Ranks that say
  // different hosts are let through to NCCL, which needs NCCL_HOSTID to differ as well.
  std::string host;
};

// Makes a group whose collectives on memory of `device` are queued for it, by NCCL.
//
// Such a call returns at once: the collective runs in the order of the calling thread's queue of
// the device. Buffers of the host go to `control`, a Gloo group say, over which the ranks also
// agree, and so do Barrier and Split; the buffers of one call are of one kind, the same on all
// ranks. A communicator is made by the first collective of a group, fork or part that needs it,
// which waits for its peers. One rank alone needs none, and copies.
//
// Values: all_gather and broadcast move bytes. Reductions of f32, f64 and integers without `add`
//   are NCCL's sums, in its order, unless `rank_order`. All others travel as the wire's dtype by
//   all-to-all and are summed in rank order by each result's owner, in f32 and rounded once, as
//   ProcessGroup says; so narrow wires lose nothing on the way.
// Errors: those of ProcessGroup, but what goes wrong after a call has returned is thrown by the
//   next one, by calls on `control`, and told by Failure(); until then results are undefined. A
//   rank that is late, a peer that ended and an Abort stop the communicators of all ranks. Ranks
//   that call different collectives are not found by themselves: wrap this in MakeCheckedGroup.
// Order: ranks must queue the collectives of all groups of one device in one order, or NCCL's
//   kernels may wait for each other for ever where they do not all fit on the device. Streams that
//   share a thread do so when jobs are enqueued in one order (see Stream).
// Threads: as any group. Starts one, "sherd/nccl", which looks at what runs every 20 ms.
// Ownership: shares `control`.
//
// COLLECTIVE. Errors: kUnimplemented in a build without CUDA; kFailedPrecondition when two ranks
//   have one device, naming them; those of a collective of `control`.
// REQUIRES: `device` is OpenCuda's.
absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectNccl(std::shared_ptr<ProcessGroup> control,
                                                          Device device, NcclOptions options = {});

// Which ranks share a device: "ranks 0 and 2 have one device, cuda:0 (...)"; "" when none do.
// COLLECTIVE over `control`. Errors (thrown): those of a collective; kUnimplemented without CUDA.
std::string FindSharedDevice(ProcessGroup& control, const Device& device,
                             const std::string& host = "");

}  // namespace sherd
