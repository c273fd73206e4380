#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/cuda/cuda_device.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/support/cuda_emulator/emulator.h"

// The backend's own sources, run by the emulator: the device, its memory and its queues. The values
// of kernels are compared by the tests of the kernels.
namespace sherd::testing {
namespace {

std::vector<float> Numbers(int64_t n, float from) {
  std::vector<float> values(n);
  for (int64_t i = 0; i < n; ++i) values[i] = from + static_cast<float>(i % 251);
  return values;
}

TEST(CudaEmulatedBackend, OpensAndComputes) {
  for (const bool synchronous : {false, true}) {
    emulated::Configure({.synchronous = synchronous, .trap = synchronous, .shuffle_seed = 5});
    {
      const auto device = OpenCuda();
      ASSERT_TRUE(device.ok()) << device.status();
      const int64_t n = 1003;
      const std::vector<float> x = Numbers(n, 1);
      const std::vector<float> y = Numbers(n, -7);
      const Tensor a = Tensor::FromHost<float>(*device, x, {n});
      const Tensor b = Tensor::FromHost<float>(*device, y, {n});
      const Tensor out = Tensor::Empty(*device, DType::kF32, {n});
      kernels::Add(a, b, out);
      kernels::Scale(out, 3, out, kernels::Write::kAdd);
      const auto got = out.ToHost<float>();
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(got[i], 4 * (x[i] + y[i])) << i;
      EXPECT_GE(emulated::ReadStatistics().launches, 2);
    }
    emulated::Configure({});
  }
}

TEST(CudaEmulatedBackend, NoDeviceAndAnOldDriverAreNamed) {
  emulated::Configure({.devices = 0});
  EXPECT_EQ(OpenCuda().status().code(), absl::StatusCode::kNotFound) << OpenCuda().status();
  EXPECT_EQ(CountCudaDevices(), 0);
  emulated::Configure({.driver_version = 11000});
  EXPECT_EQ(OpenCuda().status().code(), absl::StatusCode::kFailedPrecondition)
      << OpenCuda().status();
  emulated::Configure({.devices = 2});
  EXPECT_EQ(CountCudaDevices(), 2);
  EXPECT_EQ(OpenCuda({.index = 2}).status().code(), absl::StatusCode::kNotFound);
  emulated::Configure({});
}

TEST(CudaEmulatedBackend, ASteadyLoopAsksTheDriverForNoMemory) {
  emulated::Configure({});
  {
    const auto device = OpenCuda();
    ASSERT_TRUE(device.ok()) << device.status();
    const auto step = [&] {
      const Tensor a = Tensor::Zeros(*device, DType::kF32, {100000});
      const Tensor b = Tensor::Empty(*device, DType::kF32, {100000});
      kernels::Scale(a, 2, b);
      return b.ToHost<float>()[99999];
    };
    EXPECT_EQ(step(), 0);
    EXPECT_EQ(step(), 0);
    emulated::ResetStatistics();
    for (int i = 0; i < 5; ++i) EXPECT_EQ(step(), 0);
    EXPECT_EQ(emulated::ReadStatistics().allocations, 0);
    EXPECT_EQ(emulated::ReadStatistics().frees, 0);
  }
  emulated::Configure({});
}

}  // namespace
}  // namespace sherd::testing
