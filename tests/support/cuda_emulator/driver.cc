#include "cuda.h"

#include <string_view>

#include "machine.h"

namespace emulated {
namespace {

bool Whole(size_t bytes) { return bytes > 0 && bytes % Machine::kGranularity == 0; }

CUresult ErrorString(CUresult error, const char** text) {
  switch (error) {
    case CUDA_SUCCESS:
      *text = "no error";
      break;
    case CUDA_ERROR_INVALID_VALUE:
      *text = "invalid argument";
      break;
    case CUDA_ERROR_OUT_OF_MEMORY:
      *text = "out of memory";
      break;
    case CUDA_ERROR_INVALID_DEVICE:
      *text = "invalid device ordinal";
      break;
    default:
      *text = "unknown error";
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult CheckProp(const CUmemAllocationProp* prop) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Machine::Get().Check(prop->location.id) == cudaSuccess ? CUDA_SUCCESS
                                                                : CUDA_ERROR_INVALID_DEVICE;
}

CUresult Granularity(size_t* granularity, const CUmemAllocationProp* prop,
                     CUmemAllocationGranularity_flags) {
  *granularity = Machine::kGranularity;
  return CheckProp(prop);
}

CUresult AddressReserve(CUdeviceptr* ptr, size_t size, size_t alignment, CUdeviceptr,
                        unsigned long long) {
  if (!Whole(size) || alignment > Machine::kGranularity) return CUDA_ERROR_INVALID_VALUE;
  uintptr_t begin = 0;
  if (!Machine::Get().Reserve(size, &begin)) return CUDA_ERROR_OUT_OF_MEMORY;
  *ptr = begin;
  return CUDA_SUCCESS;
}

CUresult AddressFree(CUdeviceptr ptr, size_t size) {
  return Machine::Get().Unreserve(ptr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Create(CUmemGenericAllocationHandle* handle, size_t size, const CUmemAllocationProp* prop,
                unsigned long long) {
  if (CUresult error = CheckProp(prop)) return error;
  if (!Whole(size)) return CUDA_ERROR_INVALID_VALUE;
  uint64_t made = 0;
  if (Machine::Get().CreatePhysical(prop->location.id, size, &made) != cudaSuccess) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *handle = made;
  return CUDA_SUCCESS;
}

CUresult Release(CUmemGenericAllocationHandle handle) {
  return Machine::Get().ReleasePhysical(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Map(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long) {
  if (!Whole(size) || ptr % Machine::kGranularity != 0 || offset != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Machine::Get().Map(ptr, size, handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Unmap(CUdeviceptr ptr, size_t size) {
  return Machine::Get().Unmap(ptr, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult SetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc* desc, size_t count) {
  if (count == 0 || desc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  bool open = false;
  for (size_t i = 0; i < count; ++i) {
    open = open || desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  return Machine::Get().SetAccess(ptr, size, open) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

struct EntryPoint {
  std::string_view name;
  void* function;
};

template <typename Function>
void* Address(Function* function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace
}  // namespace emulated

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function,
                                                        unsigned version, unsigned long long,
                                                        cudaDriverEntryPointQueryResult* status) {
  using emulated::Address;
  const emulated::EntryPoint points[] = {
      {"cuGetErrorString", Address(&emulated::ErrorString)},
      {"cuMemGetAllocationGranularity", Address(&emulated::Granularity)},
      {"cuMemAddressReserve", Address(&emulated::AddressReserve)},
      {"cuMemAddressFree", Address(&emulated::AddressFree)},
      {"cuMemCreate", Address(&emulated::Create)},
      {"cuMemRelease", Address(&emulated::Release)},
      {"cuMemMap", Address(&emulated::Map)},
      {"cuMemUnmap", Address(&emulated::Unmap)},
      {"cuMemSetAccess", Address(&emulated::SetAccess)},
  };
  *function = nullptr;
  emulated::Machine& machine = emulated::Machine::Get();
  if (cudaError_t error = machine.Check(0)) return emulated::Remember(error);
  auto found = cudaDriverEntryPointSymbolNotFound;
  for (const auto& point : points) {
    if (point.name != symbol) continue;
    const bool known = version <= static_cast<unsigned>(machine.options().driver_version);
    found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointVersionNotSufficent;
    if (known) *function = point.function;
  }
  if (status != nullptr) *status = found;
  return cudaSuccess;
}
