// What there is of nccl_group.h in a build without CUDA.
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/nccl_group.h"

namespace sherd {
namespace {

constexpr char kWithout[] = "this build has no NCCL (SHERD_WITH_CUDA)";

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectNccl(std::shared_ptr<ProcessGroup>, Device,
                                                          NcclOptions) {
  return absl::UnimplementedError(kWithout);
}

std::string FindSharedDevice(ProcessGroup&, const Device&, const std::string&) {
  ThrowError(Error(absl::StatusCode::kUnimplemented, kWithout));
}

}  // namespace sherd
