// Prints a line for each CUDA device, "cuda:0 NVIDIA H200, ...". Without one: the reason on stderr,
// and exit code 77.
#include <cstdio>
#include <string>

#include "sherd/runtime/cuda/cuda_device.h"

int main() {
  std::string why;
  const int devices = sherd::CountCudaDevices(&why);
  if (devices == 0) {
    std::fprintf(stderr, "%s\n", why.c_str());
    return 77;
  }
  for (int index = 0; index < devices; ++index) {
    const absl::StatusOr<sherd::Device> device = sherd::OpenCuda({.index = index});
    if (!device.ok()) {
      std::fprintf(stderr, "%s\n", std::string(device.status().message()).c_str());
      return 1;
    }
    std::printf("cuda:%d %s\n", index, device->backend()->Describe().c_str());
  }
  return 0;
}
