#include "sherd/runtime/cuda/internal/backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/cuda/internal/check.h"

namespace sherd::cuda {
namespace {

struct FaultText {
  const char* op;
  const char* what;
};

FaultText TextOf(FaultOp op) {
  switch (op) {
    case FaultOp::kNone:
      break;
    case FaultOp::kEmbedding:
      return {"embedding", "id"};
    case FaultOp::kEmbeddingBackward:
      return {"embedding_backward", "id"};
    case FaultOp::kCrossEntropy:
      return {"cross_entropy", "target"};
    case FaultOp::kIndexSelect:
      return {"index_select", "id"};
    case FaultOp::kIndexAdd:
      return {"index_add", "id"};
    case FaultOp::kGather:
      return {"gather", "index"};
    case FaultOp::kScatterAdd:
      return {"scatter_add", "index"};
    case FaultOp::kPointwiseLoss:
      return {"pointwise_loss", "target"};
    case FaultOp::kAttention:
      return {"attention", "length"};
  }
  return {"kernel", "value"};
}

}  // namespace

Backend::Backend(DeviceProperties properties, const char* begin, const char* end)
    : properties_(std::move(properties)),
      begin_(begin),
      end_(end),
      events_(std::make_shared<EventPool>(properties_.index)),
      compute_(std::make_unique<Queue>(properties_.index, events_, false)) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, sizeof(Fault)), "cudaMalloc");
  fault_ = static_cast<Fault*>(memory);
  Zero(fault_, sizeof(Fault));
  compute_->Synchronize();  // before any other queue reads it
}

Backend::~Backend() {
  compute_.reset();
  cudaFree(fault_);
}

std::unique_ptr<DeviceQueue> Backend::MakeQueue(const std::string&) const {
  return std::make_unique<Queue>(properties_.index, events_, true);
}

void Backend::Zero(void* to, int64_t bytes) const {
  Check(cudaMemsetAsync(to, 0, static_cast<size_t>(bytes), stream()), "cudaMemsetAsync");
}

void Backend::Copy(void* to, const void* from, int64_t bytes) const {
  Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream()),
        "cudaMemcpyAsync");
}

// From pageable memory the copy returns when the driver has taken what is there; page-locked memory
// is read later.
void Backend::CopyFromHost(void* to, const void* from, int64_t bytes) const {
  CopyFromHostLater(to, from, bytes);
  cudaPointerAttributes attributes = {};
  Check(cudaPointerGetAttributes(&attributes, from), "cudaPointerGetAttributes");
  if (attributes.type != cudaMemoryTypeUnregistered) queue().Synchronize();
}

void Backend::CopyToHost(void* to, const void* from, int64_t bytes) const {
  Fault fault;
  CopyToHostLater(to, from, bytes);
  CopyToHostLater(&fault, fault_, sizeof(fault));
  queue().Synchronize();
  if (fault.op != FaultOp::kNone) ThrowIfFault(fault);
}

void Backend::CopyFromHostLater(void* to, const void* from, int64_t bytes) const {
  Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream()),
        "cudaMemcpyAsync");
}

void Backend::CopyToHostLater(void* to, const void* from, int64_t bytes) const {
  Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream()),
        "cudaMemcpyAsync");
}

std::shared_ptr<void> Backend::HostMemory(int64_t bytes) const {
  Check(cudaSetDevice(properties_.index), "cudaSetDevice");
  void* memory = nullptr;
  Check(cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocDefault), "cudaHostAlloc");
  return std::shared_ptr<void>(memory, [](void* p) { cudaFreeHost(p); });
}

bool Backend::Owns(const void* address) const {
  const char* const at = static_cast<const char*>(address);
  return begin_ <= at && at < end_;
}

void Backend::ThrowIfFault(const Fault& fault) const {
  Zero(fault_, sizeof(Fault));
  const FaultText text = TextOf(fault.op);
  ThrowInvalidArgument(absl::StrCat(text.what, " ", fault.value, " at index ", fault.place,
                                    " is outside [0, ", fault.limit, ")"),
                       {.op = text.op});
}

}  // namespace sherd::cuda
