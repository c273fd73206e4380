// A program of somebody else, built outside the tree.
#include <cstdio>

#include "sherd/runtime/core/tensor.h"

int main() {
  const sherd::Device device = sherd::Device::Cpu();
  const sherd::Tensor zeros = sherd::Tensor::Zeros(device, sherd::DType::kF32, {2, 3});
  std::printf("consumer: %s\n", zeros.ToString().c_str());
  return zeros.ToHost<float>().size() == 6 ? 0 : 1;
}
