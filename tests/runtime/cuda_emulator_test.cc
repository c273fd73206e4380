#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda.h"
#include "cuda_runtime.h"
#include "tests/runtime/cuda_emulator_kernels.h"
#include "tests/support/cuda_emulator/emulator.h"

namespace sherd::testing {
namespace {

#define ASSERT_CUDA(call) ASSERT_EQ(call, cudaSuccess) << cudaGetErrorName(cudaGetLastError())

// Device memory with the values of a vector, to be read back.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values) : size_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
              cudaSuccess);
  }
  ~OnDevice() { cudaFree(data_); }
  T* data() const { return data_; }
  // Waits for the device.
  std::vector<T> Read() const {
    std::vector<T> values(size_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return values;
  }

 private:
  size_t size_;
  T* data_ = nullptr;
};

std::vector<float> Ramp(int64_t n, float from = 0) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), from);
  return values;
}

// Each test runs with worker threads, synchronously with the trap, and in random orders.
class CudaEmulatorTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string kind = GetParam();
    emulated::Options options;
    options.synchronous = options.trap = kind == "Synchronous";
    options.shuffle_seed = kind == "Shuffled" ? 7 : 0;
    emulated::Configure(options);
    ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override { emulated::Configure({}); }
  cudaStream_t stream_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(All, CudaEmulatorTest,
                         ::testing::Values("Asynchronous", "Synchronous", "Shuffled"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(CudaEmulatorTest, AddsVectorsOfAnyLength) {
  for (const int64_t n : {1, 127, 128, 1000}) {
    OnDevice<float> a(Ramp(n));
    OnDevice<float> b(Ramp(n, 100));
    OnDevice<float> c(std::vector<float>(n, -1));
    ASSERT_CUDA(AddVectors(a.data(), b.data(), c.data(), n, stream_));
    const auto sums = c.Read();
    for (int64_t i = 0; i < n; ++i) ASSERT_EQ(sums[i], 2 * i + 100) << i;
  }
}

TEST_P(CudaEmulatorTest, ReducesBlocksWithShufflesAndBarriers) {
  const int64_t n = 1000;
  OnDevice<float> x(Ramp(n));
  OnDevice<double> sums(std::vector<double>(4, 0.5));
  ASSERT_CUDA(SumBlocks(x.data(), sums.data(), n, stream_));
  // The sum of begin, ..., end - 1 is (end - begin) (begin + end - 1) / 2.
  EXPECT_EQ(sums.Read(), (std::vector<double>{0.5 + 256 * 255 / 2, 0.5 + 256 * 767 / 2,
                                              0.5 + 256 * 1279 / 2, 0.5 + 232 * 1767 / 2}));
}

TEST_P(CudaEmulatorTest, TransposesThroughSharedMemory) {
  const int rows = 45;
  const int cols = 70;
  OnDevice<float> x(Ramp(rows * cols));
  OnDevice<float> y(std::vector<float>(rows * cols, -1));
  ASSERT_CUDA(Transpose(x.data(), y.data(), rows, cols, stream_));
  const auto values = y.Read();
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < cols; ++j) ASSERT_EQ(values[j * rows + i], i * cols + j);
  }
}

TEST_P(CudaEmulatorTest, DynamicSharedMemoryIsOneBlocks) {
  std::vector<int> values(4 * 96);
  std::iota(values.begin(), values.end(), 0);
  OnDevice<int> x(values);
  ASSERT_CUDA(ReverseBlocks(x.data(), 4, 96, stream_));
  const auto reversed = x.Read();
  for (int i = 0; i < 4 * 96; ++i) ASSERT_EQ(reversed[i], i / 96 * 96 + 95 - i % 96);
}

// Small integers are exact in both types: 0x3f80 is one in bf16, 0x3c00 in f16.
uint16_t SmallInteger(int value, bool is_bf16) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  if (is_bf16 || value == 0) return static_cast<uint16_t>(bits >> 16);
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | ((bits & 0x7fffffff) - 0x38000000) >> 13);
}

TEST_P(CudaEmulatorTest, TensorCoreProductHasThePtxLayout) {
  for (const bool is_bf16 : {true, false}) {
    std::vector<uint16_t> a(16 * 16);
    std::vector<uint16_t> b(16 * 8);
    std::vector<float> c(16 * 8);
    std::vector<float> expected(16 * 8);
    const auto a_at = [](int i, int k) { return (7 * i + 3 * k) % 11 - 5; };
    const auto b_at = [](int k, int j) { return (5 * k + 2 * j) % 13 - 6; };
    for (int i = 0; i < 16; ++i) {
      for (int k = 0; k < 16; ++k) a[i * 16 + k] = SmallInteger(a_at(i, k), is_bf16);
    }
    for (int k = 0; k < 16; ++k) {
      for (int j = 0; j < 8; ++j) b[k * 8 + j] = SmallInteger(b_at(k, j), is_bf16);
    }
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 8; ++j) {
        c[i * 8 + j] = static_cast<float>(i - j);
        expected[i * 8 + j] = c[i * 8 + j];
        for (int k = 0; k < 16; ++k) {
          expected[i * 8 + j] += static_cast<float>(a_at(i, k) * b_at(k, j));
        }
      }
    }
    OnDevice<uint16_t> da(a);
    OnDevice<uint16_t> db(b);
    OnDevice<float> dc(c);
    OnDevice<float> dd(std::vector<float>(16 * 8, -1));
    ASSERT_CUDA(Multiply(da.data(), db.data(), dc.data(), dd.data(), is_bf16, stream_));
    EXPECT_EQ(dd.Read(), expected);
  }
}

TEST_P(CudaEmulatorTest, WarpsTalkAlsoWhenLanesHaveEnded) {
  for (const int lanes : {32, 13}) {
    OnDevice<int> out(std::vector<int>(32 * 6, -1));
    ASSERT_CUDA(Talk(out.data(), lanes, stream_));
    const auto got = out.Read();
    for (int lane = 0; lane < lanes; ++lane) {
      EXPECT_EQ(got[lane * 6 + 0], 30);
      const bool segment_ends = lane % 4 == 3;
      if (segment_ends || lane + 1 < lanes) {
        EXPECT_EQ(got[lane * 6 + 1], segment_ends ? lane : lane + 1);
      }
      EXPECT_EQ(got[lane * 6 + 2], lane < 2 ? lane : lane - 2);
      EXPECT_EQ(static_cast<unsigned>(got[lane * 6 + 3]),
                0xaaaaaaaau & (lanes == 32 ? ~0u : (1u << lanes) - 1));
      EXPECT_EQ(got[lane * 6 + 4], 3);
      EXPECT_GE(got[lane * 6 + 5], lanes);
    }
    if (lanes < 32) {
      EXPECT_EQ(got[12 * 6 + 1], -1) << "a lane that is not there gives all ones";
    }
  }
}

TEST_P(CudaEmulatorTest, BarriersCountVotes) {
  const std::vector<std::vector<int>> expected = {{0, 0, 0}, {40, 1, 0}, {100, 1, 1}};
  const int bounds[] = {0, 40, 100};
  for (int i = 0; i < 3; ++i) {
    OnDevice<int> out({-1, -1, -1});
    ASSERT_CUDA(Vote(out.data(), bounds[i], stream_));
    EXPECT_EQ(out.Read(), expected[i]);
  }
}

TEST_P(CudaEmulatorTest, AtomicsSumAndFindTheLargest) {
  OnDevice<float> count({0});
  OnDevice<int> largest({-5});
  ASSERT_CUDA(CountThreads(count.data(), largest.data(), stream_));
  EXPECT_EQ(count.Read()[0], 1000);
  EXPECT_EQ(largest.Read()[0], 999);
}

TEST_P(CudaEmulatorTest, EventsOrderStreams) {
  cudaStream_t other = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  ASSERT_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  const int64_t n = 3000;
  OnDevice<float> a(Ramp(n));
  OnDevice<float> b(Ramp(n));
  OnDevice<float> c(std::vector<float>(n, 0));
  for (int round = 1; round <= 20; ++round) {
    ASSERT_CUDA(AddVectors(a.data(), b.data(), c.data(), n, stream_));
    ASSERT_CUDA(cudaEventRecord(event, stream_));
    ASSERT_CUDA(cudaStreamWaitEvent(other, event, 0));
    ASSERT_CUDA(AddVectors(c.data(), b.data(), a.data(), n, other));
    ASSERT_CUDA(cudaEventRecord(event, other));
    ASSERT_CUDA(cudaStreamWaitEvent(stream_, event, 0));
  }
  ASSERT_CUDA(cudaEventSynchronize(event));
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  const auto sums = a.Read();
  for (int64_t i = 0; i < n; ++i) ASSERT_EQ(sums[i], 41 * i);
  ASSERT_CUDA(cudaEventDestroy(event));
  ASSERT_CUDA(cudaStreamDestroy(other));
}

TEST_P(CudaEmulatorTest, CopiesAndSetsAreChecked) {
  OnDevice<int> x({1, 2, 3, 4, 5, 6});
  OnDevice<int> y({0, 0, 0, 0, 0, 0});
  std::vector<int> host(6);
  // The middle column of two rows of three.
  ASSERT_CUDA(
      cudaMemcpy2DAsync(y.data(), 8, x.data() + 1, 12, 4, 2, cudaMemcpyDeviceToDevice, stream_));
  EXPECT_EQ(y.Read(), (std::vector<int>{2, 0, 5, 0, 0, 0}));
  ASSERT_CUDA(cudaMemsetAsync(y.data() + 1, 0xff, 8, stream_));
  EXPECT_EQ(y.Read(), (std::vector<int>{2, -1, -1, 0, 0, 0}));
  EXPECT_EQ(cudaMemcpy(host.data(), x.data(), 24, cudaMemcpyHostToDevice), cudaErrorInvalidValue)
      << "the other direction";
  EXPECT_EQ(cudaMemcpy(host.data(), x.data() + 1, 24, cudaMemcpyDeviceToHost),
            cudaErrorInvalidValue)
      << "beyond the end";
  EXPECT_EQ(cudaMemsetAsync(host.data(), 0, 4, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_P(CudaEmulatorTest, PageableMemoryIsReadByTheCallPinnedMemoryLater) {
  OnDevice<int> x(std::vector<int>(1000, 0));
  std::vector<int> pageable(1000, 1);
  int* pinned = nullptr;
  ASSERT_CUDA(cudaMallocHost(&pinned, 4000));
  OnDevice<float> busy(Ramp(1 << 18));
  ASSERT_CUDA(AddVectors(busy.data(), busy.data(), busy.data(), 1 << 18, stream_));
  ASSERT_CUDA(cudaMemcpyAsync(x.data(), pageable.data(), 4000, cudaMemcpyHostToDevice, stream_));
  pageable.assign(1000, 2);
  ASSERT_CUDA(cudaMemcpyAsync(pinned, x.data(), 4000, cudaMemcpyDeviceToHost, stream_));
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  EXPECT_EQ(std::vector<int>(pinned, pinned + 1000), std::vector<int>(1000, 1));
  cudaPointerAttributes attributes;
  ASSERT_CUDA(cudaPointerGetAttributes(&attributes, pinned + 5));
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  ASSERT_CUDA(cudaPointerGetAttributes(&attributes, x.data() + 5));
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  ASSERT_CUDA(cudaPointerGetAttributes(&attributes, pageable.data()));
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
  ASSERT_CUDA(cudaFreeHost(pinned));
}

TEST_P(CudaEmulatorTest, LaunchesBeyondTheLimitsAreErrors) {
  EXPECT_EQ(Launch(1024, 0, false, stream_), cudaSuccess);
  EXPECT_EQ(Launch(1025, 0, false, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(0, 0, false, stream_), cudaErrorInvalidConfiguration);
  EXPECT_EQ(Launch(32, 48 * 1024 + 1, false, stream_), cudaErrorInvalidValue);
  EXPECT_EQ(Launch(32, 100 * 1024, true, stream_), cudaSuccess);
  EXPECT_EQ(Launch(32, 300 * 1024, true, stream_), cudaErrorInvalidValue);
}

TEST_P(CudaEmulatorTest, CountsWhatIsAskedFor) {
  OnDevice<float> x(Ramp(64));
  emulated::ResetStatistics();
  ASSERT_CUDA(AddVectors(x.data(), x.data(), x.data(), 64, stream_));
  ASSERT_CUDA(cudaMemcpyAsync(x.data(), x.data() + 32, 128, cudaMemcpyDefault, stream_));
  ASSERT_CUDA(cudaStreamSynchronize(stream_));
  const emulated::Statistics seen = emulated::ReadStatistics();
  EXPECT_EQ(seen.launches, 1);
  EXPECT_EQ(seen.copies[cudaMemcpyDeviceToDevice], 1);
  EXPECT_EQ(seen.copy_bytes[cudaMemcpyDeviceToDevice], 128);
  EXPECT_EQ(seen.copies[cudaMemcpyHostToDevice], 0);
  EXPECT_EQ(seen.synchronisations, 1);
  EXPECT_EQ(seen.allocations, 0);
}

TEST(CudaEmulatorOrder, ShuffledBlocksRunInAnotherOrder) {
  for (const uint64_t seed : {0, 3}) {
    emulated::Configure({.shuffle_seed = seed});
    OnDevice<int> order(std::vector<int>(100, -1));
    OnDevice<unsigned> next({0});
    ASSERT_CUDA(NoteOrder(order.data(), next.data(), 100, nullptr));
    const auto ran = order.Read();
    EXPECT_EQ(std::set<int>(ran.begin(), ran.end()).size(), 100u);
    EXPECT_EQ(std::is_sorted(ran.begin(), ran.end()), seed == 0);
  }
  emulated::Configure({});
}

TEST(CudaEmulatorOrder, AForgottenBarrierGivesWrongValues) {
  emulated::Configure({});
  OnDevice<int> out(std::vector<int>(64, -1));
  ASSERT_CUDA(ForgetBarrier(out.data(), nullptr));
  EXPECT_NE(out.Read(), std::vector<int>(64, 1));
}

// A kernel that waits until the host lets it go shows that the host does not wait for kernels.
TEST(CudaEmulatorOrder, WorkIsQueuedAndDoneLater) {
  emulated::Configure({});
  cudaStream_t first = nullptr;
  cudaStream_t second = nullptr;
  cudaEvent_t start = nullptr;
  cudaEvent_t end = nullptr;
  ASSERT_CUDA(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  ASSERT_CUDA(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  ASSERT_CUDA(cudaEventCreateWithFlags(&start, cudaEventDefault));
  ASSERT_CUDA(cudaEventCreateWithFlags(&end, cudaEventDefault));
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorInvalidResourceHandle);
  OnDevice<float> x(Ramp(1 << 20));
  ASSERT_CUDA(cudaEventRecord(start, first));
  ASSERT_CUDA(AddVectors(x.data(), x.data(), x.data(), 1 << 20, first));
  ASSERT_CUDA(cudaEventRecord(end, first));
  EXPECT_EQ(cudaStreamQuery(first), cudaErrorNotReady) << "a million additions take a while";
  EXPECT_EQ(cudaStreamQuery(second), cudaSuccess) << "nothing orders the two streams";
  ASSERT_CUDA(cudaStreamDestroy(second));
  ASSERT_CUDA(cudaStreamSynchronize(first));
  ASSERT_CUDA(cudaEventElapsedTime(&milliseconds, start, end));
  EXPECT_GT(milliseconds, 0);
  ASSERT_CUDA(cudaEventDestroy(start));
  ASSERT_CUDA(cudaEventDestroy(end));
  emulated::Configure({});
}

TEST(CudaEmulatorDevices, MemoryEnds) {
  emulated::Configure({.memory_bytes = 1 << 20});
  void* first = nullptr;
  void* second = nullptr;
  ASSERT_CUDA(cudaMalloc(&first, 600000));
  EXPECT_EQ(cudaMalloc(&second, 600000), cudaErrorMemoryAllocation);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  size_t free = 0;
  size_t total = 0;
  ASSERT_CUDA(cudaMemGetInfo(&free, &total));
  EXPECT_EQ(total, size_t{1} << 20);
  EXPECT_EQ(free, total - 600064) << "rounded to 256 bytes";
  ASSERT_CUDA(cudaFree(first));
  ASSERT_CUDA(cudaMalloc(&second, 600000));
  EXPECT_EQ(cudaFree(first), first == second ? cudaSuccess : cudaErrorInvalidValue);
  emulated::Configure({});
}

TEST(CudaEmulatorDevices, NoDeviceIsAnErrorOfEveryCall) {
  for (const bool driver : {true, false}) {
    emulated::Configure({.devices = driver ? 0 : 1, .driver_version = driver ? 13000 : 0});
    const cudaError_t expected = driver ? cudaErrorNoDevice : cudaErrorInsufficientDriver;
    int count = -1;
    void* memory = nullptr;
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaGetDeviceCount(&count), expected);
    EXPECT_EQ(count, 0);
    EXPECT_EQ(cudaSetDevice(0), expected);
    EXPECT_EQ(cudaMalloc(&memory, 1), expected);
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, 0), expected);
    EXPECT_EQ(cudaDeviceSynchronize(), expected);
    EXPECT_EQ(Launch(32, 0, false, nullptr), expected);
  }
  emulated::Configure({});
}

TEST(CudaEmulatorDevices, AStreamBelongsToItsDevice) {
  emulated::Configure({.devices = 2});
  cudaStream_t stream = nullptr;
  int count = 0;
  ASSERT_CUDA(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 2);
  ASSERT_CUDA(cudaSetDevice(1));
  ASSERT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  EXPECT_EQ(Launch(32, 0, false, stream), cudaSuccess);
  std::thread([&] {
    EXPECT_EQ(Launch(32, 0, false, stream), cudaErrorInvalidResourceHandle);
  }).join();  // a new thread begins with device 0
  EXPECT_EQ(cudaSetDevice(2), cudaErrorInvalidDevice);
  ASSERT_CUDA(cudaSetDevice(0));
  emulated::Configure({});
}

template <typename Function>
Function* DriverFunction(const char* name, Function*) {
  void* function = nullptr;
  auto status = cudaDriverEntryPointSymbolNotFound;
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &function, 12000, 0, &status), cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSuccess) << name;
  return reinterpret_cast<Function*>(function);
}
#define DRIVER(name) DriverFunction(#name, static_cast<decltype(&name)>(nullptr))

TEST(CudaEmulatorDriver, AddressesOutliveTheMemoryBehindThem) {
  const size_t piece = size_t{2} << 20;
  emulated::Configure({.memory_bytes = 3 * int64_t{2} << 20});
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  size_t granularity = 0;
  ASSERT_EQ(
      DRIVER(cuMemGetAllocationGranularity)(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
      CUDA_SUCCESS);
  EXPECT_EQ(granularity, piece);
  CUdeviceptr base = 0;
  ASSERT_EQ(DRIVER(cuMemAddressReserve)(&base, 8 * piece, 0, 0, 0), CUDA_SUCCESS)
      << "more than there is memory";
  CUmemGenericAllocationHandle handles[4] = {};
  const CUmemAccessDesc access = {prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(DRIVER(cuMemCreate)(&handles[i], piece, &prop, 0), CUDA_SUCCESS);
    ASSERT_EQ(DRIVER(cuMemMap)(base + i * piece, piece, 0, handles[i], 0), CUDA_SUCCESS);
  }
  EXPECT_EQ(DRIVER(cuMemCreate)(&handles[3], piece, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY);
  ASSERT_EQ(DRIVER(cuMemSetAccess)(base, 3 * piece, &access, 1), CUDA_SUCCESS);
  auto* memory = reinterpret_cast<float*>(base);
  const int64_t last = static_cast<int64_t>(3 * piece / sizeof(float)) - 1;
  float value = 0;
  ASSERT_CUDA(cudaMemcpy(&value, memory + last, 4, cudaMemcpyDeviceToHost));
  EXPECT_TRUE(std::isnan(value)) << "new memory is poisoned";
  ASSERT_CUDA(cudaMemset(memory, 0, 3 * piece)) << "three pieces in a row are one range";
  EXPECT_EQ(cudaMemset(memory, 0, 3 * piece + 1), cudaErrorInvalidValue);
  ASSERT_CUDA(Poke(memory, last, 5, nullptr));
  ASSERT_CUDA(Poke(memory, 0, 3, nullptr));
  ASSERT_CUDA(cudaDeviceSynchronize());
  ASSERT_CUDA(cudaMemcpy(&value, memory + piece / 4, 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(value, 0) << "each piece has memory of its own";

  // The last piece moves to another address and keeps what it holds.
  ASSERT_EQ(DRIVER(cuMemUnmap)(base + 2 * piece, piece), CUDA_SUCCESS);
  ASSERT_EQ(DRIVER(cuMemMap)(base + 5 * piece, piece, 0, handles[2], 0), CUDA_SUCCESS);
  ASSERT_EQ(DRIVER(cuMemSetAccess)(base + 5 * piece, piece, &access, 1), CUDA_SUCCESS);
  ASSERT_CUDA(cudaMemcpy(&value, memory + last + 3 * piece / 4, 4, cudaMemcpyDeviceToHost));
  EXPECT_EQ(value, 5);
  EXPECT_EQ(cudaMemcpy(&value, memory + last, 4, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);

  EXPECT_EQ(DRIVER(cuMemAddressFree)(base, 8 * piece), CUDA_ERROR_INVALID_VALUE) << "in use";
  ASSERT_EQ(DRIVER(cuMemUnmap)(base, 2 * piece), CUDA_SUCCESS);
  ASSERT_EQ(DRIVER(cuMemUnmap)(base + 5 * piece, piece), CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(DRIVER(cuMemRelease)(handles[i]), CUDA_SUCCESS);
  EXPECT_EQ(emulated::UsedBytes(0), 0);
  EXPECT_EQ(DRIVER(cuMemAddressFree)(base, 8 * piece), CUDA_SUCCESS);
  emulated::Configure({});
}

TEST(CudaEmulatorDeathTest, DivergentBarriersAreFound) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto diverge = [](bool for_warp) {
    emulated::Configure({.synchronous = true});
    Diverge(for_warp, nullptr);
  };
  EXPECT_DEATH(diverge(false), "meet at different barriers");
  EXPECT_DEATH(diverge(true), "16 threads, the first is 0, wait at __syncthreads");
}

TEST(CudaEmulatorDeathTest, AccessesThatADeviceWouldNotDoAreSignals) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto poke = [](int64_t at, bool by_host) {
    emulated::Configure({.synchronous = true, .trap = true});
    float* x = nullptr;
    cudaMalloc(&x, 64 * sizeof(float));
    if (by_host) {
      x[at] = 1;
    } else {
      Poke(x, at, 1, nullptr);
    }
    _exit(0);
  };
  EXPECT_EXIT(poke(63, false), ::testing::ExitedWithCode(0), "");
  EXPECT_DEATH(poke(64, false), "");
  EXPECT_DEATH(poke(0, true), "");
}

}  // namespace
}  // namespace sherd::testing
