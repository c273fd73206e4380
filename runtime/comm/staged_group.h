#pragma once

#include <cstdint>
#include <memory>

#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/core/device.h"

namespace sherd {

struct StagedOptions {
  // The most page-locked host memory that each group, fork and part keeps. A collective that needs
  // more goes in pieces of half of it, of which one is copied while the one before it travels. The
  // same on all ranks.
  int64_t staging_bytes = int64_t{64} << 20;
};

// Lets a group whose collectives take host addresses, as Gloo's, take those of `device` as well.
//
// Buffers in the memory of `device` pass through page-locked host memory, which each group takes
// when it first needs it and keeps; others go straight to `inner`, and a call may have one of each
// kind. Work is asked of the calling thread's queue of the device. The host waits until what a rank
// sends has left the device, then for its peers; results are queued for the device when a call
// returns. Values, errors and their texts are those of `inner`.
//
// Ranks may differ in where a buffer lies, unless the collective goes in pieces: then all ranks
// have it on their device, or all on the host.
// Ownership: shares `inner`. Threads: as `inner`.
// REQUIRES: device.backend() is not null.
std::unique_ptr<ProcessGroup> MakeStagedGroup(std::shared_ptr<ProcessGroup> inner, Device device,
                                              StagedOptions options = {});

}  // namespace sherd
