#include "nccl.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "exchange.h"
#include "machine.h"
#include "stream.h"

namespace emulated {

struct Queued {
  CUstream_st* stream = nullptr;
  Exchange call;
};

}  // namespace emulated

// One rank's handle. Threads: used by one thread at a time, but for ncclCommAbort and
// ncclCommGetAsyncError.
struct ncclComm {
  std::shared_ptr<emulated::Clique> clique;
  int rank = 0;
  bool blocking = true;
  int device = 0;
  int64_t collectives = 0;
  std::atomic<int64_t> jobs{0};
  std::atomic<bool> finalizing{false};
  std::mutex mutex;                         // of what follows
  std::vector<emulated::Queued> launching;  // not on their streams yet
  int polls = 0;

  emulated::Clique::Member& self() const { return clique->member(rank); }
  bool busy() const { return self().ended.load(std::memory_order_relaxed) < jobs; }
  // Without an order between the work and this thread.
  void WaitForWork() const {
    while (busy()) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
};

namespace emulated {
namespace {

thread_local std::string host_name;
thread_local std::string last_error;
thread_local int group_depth = 0;
thread_local std::vector<std::pair<ncclComm_t, Queued>> group;

struct Cliques {
  std::mutex mutex;
  uint64_t next_id = 1;
  std::map<uint64_t, std::weak_ptr<Clique>> by_id;
  std::map<void*, std::pair<uint64_t, size_t>> allocated;  // of ncclMemAlloc: handle and size
};

Cliques& TheCliques() {
  static auto* cliques = new Cliques;
  return *cliques;
}

ncclResult_t Failed(ncclResult_t result, const std::string& why) {
  last_error = why;
  return result;
}

std::shared_ptr<Clique> CliqueOf(const ncclUniqueId& id, int size) {
  uint64_t key = 0;
  std::memcpy(&key, id.internal + 8, sizeof(key));
  Cliques& cliques = TheCliques();
  std::lock_guard lock(cliques.mutex);
  if (std::memcmp(id.internal, "emulated", 8) != 0 || key == 0 || key >= cliques.next_id) {
    return nullptr;
  }
  std::shared_ptr<Clique> clique = cliques.by_id[key].lock();
  if (clique == nullptr) {
    clique = std::make_shared<Clique>(size);
    cliques.by_id[key] = clique;
  }
  return clique;
}

// Puts the calls of one communicator on their streams, those of one stream as one job.
void Launch(ncclComm_t comm, std::vector<Queued> calls) {
  while (!calls.empty()) {
    CUstream_st* stream = calls.front().stream;
    std::vector<Exchange> together;
    std::erase_if(calls, [&](const Queued& one) {
      if (one.stream != stream) return false;
      together.push_back(one.call);
      return true;
    });
    ++comm->jobs;
    stream->Push([clique = comm->clique, rank = comm->rank, together = std::move(together)] {
      clique->Run(rank, together);
    });
  }
}

// A communicator that does not block queues its work in the background, so whoever does not poll
// until ncclCommGetAsyncError says ncclSuccess has no work on the stream.
ncclResult_t Submit(ncclComm_t comm, std::vector<Queued> calls) {
  if (comm->blocking) {
    Launch(comm, std::move(calls));
    return ncclSuccess;
  }
  std::lock_guard lock(comm->mutex);
  comm->launching = std::move(calls);
  comm->polls = 0;
  return ncclInProgress;
}

ncclResult_t EndGroup() {
  auto calls = std::move(group);
  group.clear();
  ncclResult_t result = ncclSuccess;
  while (!calls.empty()) {
    ncclComm_t comm = calls.front().first;
    std::vector<Queued> of_comm;
    std::erase_if(calls, [&](const auto& one) {
      if (one.first != comm) return false;
      of_comm.push_back(one.second);
      return true;
    });
    const ncclResult_t submitted = Submit(comm, std::move(of_comm));
    if (submitted != ncclSuccess) result = submitted;
  }
  return result;
}

ncclResult_t CheckReady(ncclComm_t comm) {
  if (comm == nullptr) return Failed(ncclInvalidArgument, "the communicator is null");
  const int state = comm->self().state.load(std::memory_order_relaxed);
  std::lock_guard lock(comm->mutex);
  if (state == ncclInProgress || !comm->launching.empty()) {
    return Failed(ncclInvalidArgument,
                  "a communicator is used before its last call has returned ncclSuccess");
  }
  return static_cast<ncclResult_t>(state);
}

bool Reachable(const void* pointer, size_t bytes) {
  if (bytes == 0) return true;
  bool on_device = false;
  const Machine& machine = Machine::Get();
  return machine.Locate(pointer, bytes, &on_device) == cudaSuccess &&
         (on_device || machine.IsHostPinned(pointer));
}

ncclResult_t Enqueue(ncclComm_t comm, Exchange call, size_t send_count, size_t recv_count,
                     cudaStream_t stream) {
  if (ncclResult_t error = CheckReady(comm)) return error;
  if (call.type < ncclInt8 || call.type > ncclBfloat16 || call.op < ncclSum || call.op > ncclAvg) {
    return Failed(ncclInvalidArgument, "an unknown type or operation");
  }
  if (call.peer < 0 || call.peer >= comm->clique->size()) {
    return Failed(ncclInvalidArgument, "there is no rank " + std::to_string(call.peer));
  }
  CUstream_st* of = stream;
  if (of == nullptr && StreamOf(nullptr, &of) != cudaSuccess) return ncclUnhandledCudaError;
  if (of->device() != comm->device) {
    return Failed(ncclInvalidArgument, "a stream of another device than the communicator's");
  }
  const size_t size = SizeOf(call.type);
  if (!Reachable(call.send, send_count * size) || !Reachable(call.recv, recv_count * size)) {
    return Failed(ncclInvalidArgument, "a buffer is not memory of the device, or too small");
  }
  if (call.kind < Exchange::kSend) call.sequence = comm->collectives++;
  Count(Machine::Get().counts.collectives);
  group.emplace_back(comm, Queued{of, call});
  return group_depth > 0 ? ncclSuccess : EndGroup();
}

}  // namespace

void SetHost(const std::string& name) { host_name = name; }

}  // namespace emulated

using emulated::Exchange;
using emulated::Failed;
using emulated::Machine;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t) { return emulated::last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  emulated::Cliques& cliques = emulated::TheCliques();
  std::lock_guard lock(cliques.mutex);
  std::memset(id, 0, sizeof(*id));
  std::memcpy(id->internal, "emulated", 8);
  std::memcpy(id->internal + 8, &cliques.next_id, sizeof(cliques.next_id));
  ++cliques.next_id;
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (comm == nullptr || nranks < 1 || rank < 0 || rank >= nranks) {
    return Failed(ncclInvalidArgument,
                  "rank " + std::to_string(rank) + " of " + std::to_string(nranks) + " ranks");
  }
  if (config != nullptr && (config->magic != 0xcafebeef || config->size != sizeof(*config))) {
    return Failed(ncclInvalidArgument, "the config was not made by NCCL_CONFIG_INITIALIZER");
  }
  const int device = emulated::CurrentDevice();
  if (Machine::Get().Check(device) != cudaSuccess) return ncclUnhandledCudaError;
  auto clique = emulated::CliqueOf(id, nranks);
  if (clique == nullptr) return Failed(ncclInvalidArgument, "an unknown unique id");
  if (ncclResult_t error = clique->Join(rank, nranks, device, emulated::host_name)) {
    return Failed(error, "two ranks have the same number, or differ in how many there are");
  }
  auto* made = new ncclComm;
  made->clique = std::move(clique);
  made->rank = rank;
  made->device = device;
  made->blocking = config == nullptr || config->blocking != 0;  // undefined means blocking
  *comm = made;
  if (!made->blocking) return ncclInProgress;
  made->clique->WaitForAll(rank);
  const auto result = static_cast<ncclResult_t>(made->self().state.load());
  if (result != ncclSuccess) {
    delete made;
    *comm = nullptr;
    return Failed(result, "two ranks are on one device");
  }
  return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, nranks, id, rank, nullptr);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* async_error) {
  if (comm == nullptr || async_error == nullptr) return ncclInvalidArgument;
  emulated::Clique::Member& self = comm->self();
  *async_error = static_cast<ncclResult_t>(self.state.load(std::memory_order_relaxed));
  if (*async_error == ncclInvalidUsage) emulated::last_error = "two ranks are on one device";
  if (*async_error != ncclSuccess) return ncclSuccess;
  std::lock_guard lock(comm->mutex);
  if (!comm->launching.empty() && comm->polls++ == 0) {
    *async_error = ncclInProgress;
    return ncclSuccess;
  }
  emulated::Launch(comm, std::exchange(comm->launching, {}));
  if (comm->finalizing && comm->busy()) *async_error = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  if (ncclResult_t error = emulated::CheckReady(comm)) return error;
  comm->finalizing = true;
  if (!comm->blocking) return ncclInProgress;
  comm->WaitForWork();
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  comm->WaitForWork();
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  if (comm == nullptr) return ncclSuccess;
  comm->clique->Abort(comm->rank);
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  if (comm == nullptr) return ncclInvalidArgument;
  *count = comm->clique->size();
  return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  if (comm == nullptr) return ncclInvalidArgument;
  *device = comm->device;
  return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  if (comm == nullptr) return ncclInvalidArgument;
  *rank = comm->rank;
  return ncclSuccess;
}

// Memory of cuMemCreate, as NCCL's.
ncclResult_t ncclMemAlloc(void** pointer, size_t size) {
  Machine& machine = Machine::Get();
  const int device = emulated::CurrentDevice();
  if (machine.Check(device) != cudaSuccess || size == 0) return ncclInvalidArgument;
  const size_t rounded =
      (size + Machine::kGranularity - 1) / Machine::kGranularity * Machine::kGranularity;
  uint64_t handle = 0;
  uintptr_t begin = 0;
  if (machine.CreatePhysical(device, rounded, &handle) != cudaSuccess) {
    return Failed(ncclUnhandledCudaError, "out of memory");
  }
  if (!machine.Reserve(rounded, &begin) || !machine.Map(begin, rounded, handle) ||
      !machine.SetAccess(begin, rounded, true)) {
    return ncclSystemError;
  }
  machine.ReleasePhysical(handle);  // goes with the map
  *pointer = reinterpret_cast<void*>(begin);
  emulated::Cliques& cliques = emulated::TheCliques();
  std::lock_guard lock(cliques.mutex);
  cliques.allocated[*pointer] = {handle, rounded};
  return ncclSuccess;
}

ncclResult_t ncclMemFree(void* pointer) {
  if (pointer == nullptr) return ncclSuccess;
  emulated::Cliques& cliques = emulated::TheCliques();
  std::lock_guard lock(cliques.mutex);
  const auto found = cliques.allocated.find(pointer);
  if (found == cliques.allocated.end()) return ncclInvalidArgument;
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  const size_t size = found->second.second;
  cliques.allocated.erase(found);
  const bool freed = Machine::Get().Unmap(begin, size) && Machine::Get().Unreserve(begin, size);
  return freed ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t size, void** handle) {
  if (ncclResult_t error = emulated::CheckReady(comm)) return error;
  if (size == 0 || handle == nullptr || !emulated::Reachable(buffer, size)) {
    return Failed(ncclInvalidArgument, "a buffer to register is not memory of the device");
  }
  *handle = new char;
  return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  if (comm == nullptr || handle == nullptr) return ncclInvalidArgument;
  delete static_cast<char*>(handle);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++emulated::group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (emulated::group_depth == 0) return Failed(ncclInvalidUsage, "ncclGroupEnd without a start");
  if (--emulated::group_depth > 0) return ncclSuccess;
  return emulated::EndGroup();
}

ncclResult_t ncclAllReduce(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const Exchange call{Exchange::kAllReduce, send, recv, count, type, op};
  return emulated::Enqueue(comm, call, count, count, stream);
}

ncclResult_t ncclReduceScatter(const void* send, void* recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const size_t ranks = comm == nullptr ? 1 : static_cast<size_t>(comm->clique->size());
  const Exchange call{Exchange::kReduceScatter, send, recv, count, type, op};
  return emulated::Enqueue(comm, call, count * ranks, count, stream);
}

ncclResult_t ncclAllGather(const void* send, void* recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t ranks = comm == nullptr ? 1 : static_cast<size_t>(comm->clique->size());
  const Exchange call{Exchange::kAllGather, send, recv, count, type};
  return emulated::Enqueue(comm, call, count, count * ranks, stream);
}

ncclResult_t ncclBroadcast(const void* send, void* recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  const bool sends = comm != nullptr && comm->rank == root;
  const Exchange call{Exchange::kBroadcast, send, recv, count, type, ncclSum, root};
  return emulated::Enqueue(comm, call, sends ? count : 0, count, stream);
}

ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  const Exchange call{Exchange::kSend, send, nullptr, count, type, ncclSum, peer};
  return emulated::Enqueue(comm, call, count, 0, stream);
}

ncclResult_t ncclRecv(void* recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  const Exchange call{Exchange::kRecv, nullptr, recv, count, type, ncclSum, peer};
  return emulated::Enqueue(comm, call, 0, count, stream);
}

}  // extern "C"
