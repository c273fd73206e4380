#pragma once

#include <cstdint>
#include <string>

namespace emulated {

struct Options {
  int devices = 1;                          // 0: every call fails with cudaErrorNoDevice
  int64_t memory_bytes = int64_t{1} << 30;  // of each device
  int driver_version = 13000;               // less than 13000: cudaErrorInsufficientDriver
  // Work is done by the call that asks for it, on its thread, instead of by a worker per stream.
  bool synchronous = false;
  // Device memory may be touched by kernels, copies and sets alone: anything else is a SIGSEGV.
  // REQUIRES: synchronous.
  bool trap = false;
  // New device memory holds NaN instead of zeros. Cost: touches it all, up to 64 MiB of each piece.
  bool poison = true;
  // Other than 0: blocks run in a random order, and so do the threads of a block.
  uint64_t shuffle_seed = 0;
};

// Starts over with other machines: ends all streams, frees all memory, sets the counts to zero.
// Before the first call the options are the defaults. REQUIRES: no other thread uses CUDA, nothing
// is queued that waits for a peer.
void Configure(const Options& options);

// What was asked for since Configure or ResetStatistics. Copies are indexed by cudaMemcpyKind
// (cudaMemcpyDefault counts as what it turns out to be).
struct Statistics {
  int64_t launches = 0;
  int64_t copies[4] = {};
  int64_t copy_bytes[4] = {};
  int64_t sets = 0;
  int64_t matmuls = 0;
  int64_t collectives = 0;       // of NCCL, counted on each rank
  int64_t synchronisations = 0;  // waits of the host for a device, a stream or an event
  int64_t allocations = 0;       // device memory: cudaMalloc and cuMemCreate
  int64_t frees = 0;
  int64_t host_allocations = 0;
  int64_t events = 0;   // made
  int64_t streams = 0;  // made
};
Statistics ReadStatistics();
void ResetStatistics();

// Bytes of the device's memory that are in use.
int64_t UsedBytes(int device);

// The host that the calling thread claims to be when it makes a communicator; NCCL refuses two
// ranks on one device of one host. Stands for the variable NCCL_HOSTID, which a thread cannot have
// alone.
void SetHost(const std::string& name);

}  // namespace emulated
