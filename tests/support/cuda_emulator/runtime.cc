#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "block.h"
#include "machine.h"
#include "stream.h"

namespace emulated {
namespace {

constexpr size_t kShared = 48 * 1024;
constexpr size_t kSharedOptin = 227 * 1024;
constexpr int kProcessors = 4;  // few: kernels that fill the device with blocks stay small
constexpr int kThreadsPerProcessor = 2048;

// What kernels were allowed by cudaFuncSetAttribute.
struct Limits {
  std::mutex mutex;
  std::map<const void*, int> dynamic_bytes;
};

Limits& TheLimits() {
  static auto* limits = new Limits;
  return *limits;
}

size_t DynamicLimit(const void* kernel) {
  Limits& limits = TheLimits();
  std::lock_guard lock(limits.mutex);
  const auto found = limits.dynamic_bytes.find(kernel);
  return found == limits.dynamic_bytes.end() ? kShared : static_cast<size_t>(found->second);
}

}  // namespace

void Configure(const Options& options) {
  DropStreams();
  Machine& machine = Machine::Get();
  machine.FreeAll();
  machine.set_options(options);
  ResetStatistics();
}

int64_t UsedBytes(int device) { return Machine::Get().used(device); }

Statistics ReadStatistics() {
  const Counts& from = Machine::Get().counts;
  Statistics to;
  to.launches = from.launches;
  for (int kind = 0; kind < 4; ++kind) {
    to.copies[kind] = from.copies[kind];
    to.copy_bytes[kind] = from.copy_bytes[kind];
  }
  to.sets = from.sets;
  to.matmuls = from.matmuls;
  to.collectives = from.collectives;
  to.synchronisations = from.synchronisations;
  to.allocations = from.allocations;
  to.frees = from.frees;
  to.host_allocations = from.host_allocations;
  to.events = from.events;
  to.streams = from.streams;
  return to;
}

void ResetStatistics() {
  Counts& counts = Machine::Get().counts;
  for (auto* count : {&counts.launches, &counts.sets, &counts.matmuls, &counts.collectives,
                      &counts.synchronisations, &counts.allocations, &counts.frees,
                      &counts.host_allocations, &counts.events, &counts.streams}) {
    *count = 0;
  }
  for (int kind = 0; kind < 4; ++kind) {
    counts.copies[kind] = 0;
    counts.copy_bytes[kind] = 0;
  }
}

cudaError_t LaunchGrid(const cudaLaunchConfig_t& config, const void* kernel,
                       std::function<void()> thread) {
  CUstream_st* stream = nullptr;
  if (cudaError_t error = StreamOf(config.stream, &stream)) return Remember(error);
  const dim3 block = config.blockDim;
  const dim3 grid = config.gridDim;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64 ||
      grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535) {
    return Remember(cudaErrorInvalidConfiguration);
  }
  if (config.dynamicSmemBytes > DynamicLimit(kernel)) return Remember(cudaErrorInvalidValue);
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension ||
        config.attrs[i].id == cudaLaunchAttributeCooperative) {
      return Remember(cudaErrorNotSupported);
    }
  }
  Count(Machine::Get().counts.launches);
  stream->Push(
      [work = Grid{grid, block, config.dynamicSmemBytes, Machine::Get().options().shuffle_seed,
                   std::move(thread)}] { RunGrid(work); });
  return cudaSuccess;
}

}  // namespace emulated

using emulated::Count;
using emulated::Machine;
using emulated::Remember;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  if (cudaError_t error = Machine::Get().Check(0)) return Remember(error);
  *count = Machine::Get().options().devices;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = Machine::Get().options().driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* prop, int device) {
  if (cudaError_t error = Machine::Get().Check(device)) return Remember(error);
  *prop = cudaDeviceProp{};
  std::snprintf(prop->name, sizeof(prop->name), "Emulated device %d", device);
  prop->uuid.bytes[0] = static_cast<char>(device);
  prop->totalGlobalMem = static_cast<size_t>(Machine::Get().options().memory_bytes);
  prop->sharedMemPerBlock = emulated::kShared;
  prop->sharedMemPerBlockOptin = emulated::kSharedOptin;
  prop->sharedMemPerMultiprocessor = emulated::kSharedOptin + 1024;
  prop->regsPerBlock = prop->regsPerMultiprocessor = 65536;
  prop->warpSize = 32;
  prop->maxThreadsPerBlock = 1024;
  for (int i = 0; i < 3; ++i) {
    prop->maxThreadsDim[i] = i < 2 ? 1024 : 64;
    prop->maxGridSize[i] = i < 1 ? 0x7fffffff : 65535;
  }
  prop->major = 9;
  prop->minor = 0;
  prop->multiProcessorCount = emulated::kProcessors;
  prop->maxThreadsPerMultiProcessor = emulated::kThreadsPerProcessor;
  prop->canMapHostMemory = prop->unifiedAddressing = 1;
  prop->pciBusID = device + 1;
  prop->memoryBusWidth = 5120;
  prop->l2CacheSize = 50 << 20;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  cudaDeviceProp prop;
  if (cudaError_t error = cudaGetDeviceProperties(&prop, device)) return error;
  switch (attr) {
    case cudaDevAttrMaxThreadsPerBlock:
      *value = prop.maxThreadsPerBlock;
      break;
    case cudaDevAttrMaxGridDimX:
      *value = prop.maxGridSize[0];
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = emulated::kShared;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = emulated::kSharedOptin;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = emulated::kSharedOptin + 1024;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMaxRegistersPerBlock:
      *value = prop.regsPerBlock;
      break;
    case cudaDevAttrClockRate:
      *value = 1980000;
      break;
    case cudaDevAttrMemoryClockRate:
      *value = 3201000;
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = prop.multiProcessorCount;
      break;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      *value = emulated::kThreadsPerProcessor;
      break;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      *value = 32;
      break;
    case cudaDevAttrPciBusId:
      *value = prop.pciBusID;
      break;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = prop.memoryBusWidth;
      break;
    case cudaDevAttrL2CacheSize:
      *value = prop.l2CacheSize;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = prop.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = prop.minor;
      break;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
      *value = 1;
      break;
    case cudaDevAttrPciDeviceId:
    case cudaDevAttrPciDomainId:
      *value = 0;
      break;
    default:
      return Remember(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int len, int device) {
  if (cudaError_t error = Machine::Get().Check(device)) return Remember(error);
  std::snprintf(id, static_cast<size_t>(len), "0000:%02X:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (cudaError_t error = Machine::Get().Check(emulated::CurrentDevice())) return Remember(error);
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define X(name, value) \
  case name:           \
    return #name;
    EMULATED_CUDA_ERRORS(X)
#undef X
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "the driver is older than the runtime (emulated)";
    case cudaErrorNoDevice:
      return "there is no device (emulated)";
    default:
      return cudaGetErrorName(error);
  }
}

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attr, int value) {
  if (cudaError_t error = Machine::Get().Check(emulated::CurrentDevice())) return Remember(error);
  if (function == nullptr) return Remember(cudaErrorInvalidDeviceFunction);
  if (attr != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
  if (value < 0 || static_cast<size_t>(value) > emulated::kSharedOptin) {
    return Remember(cudaErrorInvalidValue);
  }
  emulated::Limits& limits = emulated::TheLimits();
  std::lock_guard lock(limits.mutex);
  limits.dynamic_bytes[function] = value;
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int block_size,
                                                          size_t dynamic_bytes) {
  if (cudaError_t error = Machine::Get().Check(emulated::CurrentDevice())) return Remember(error);
  if (block_size <= 0 || block_size > 1024) return Remember(cudaErrorInvalidValue);
  const int by_threads = emulated::kThreadsPerProcessor / ((block_size + 31) / 32 * 32);
  const auto by_memory = static_cast<int>((emulated::kSharedOptin + 1024) / (dynamic_bytes + 1024));
  *blocks = min(32, min(by_threads, by_memory));
  return cudaSuccess;
}

}  // extern "C"
