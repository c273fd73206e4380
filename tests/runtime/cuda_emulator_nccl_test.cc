#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "cuda_runtime.h"
#include "nccl.h"
#include "tests/support/cuda_emulator/emulator.h"

namespace sherd::testing {
namespace {

constexpr int kRanks = 3;

ncclResult_t Poll(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    EXPECT_EQ(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    std::this_thread::yield();
  }
  return state;
}

// One rank: its device, a stream, and a communicator of all.
struct Rank {
  int rank = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  bool blocking = true;

  template <typename T>
  T* Put(const std::vector<T>& values) const {
    T* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, values.size() * sizeof(T)), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(memory, values.data(), values.size() * sizeof(T),
                              cudaMemcpyHostToDevice, stream),
              cudaSuccess);
    return memory;
  }
  template <typename T>
  std::vector<T> Get(const T* memory, size_t count) const {
    std::vector<T> values(count);
    EXPECT_EQ(
        cudaMemcpyAsync(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost, stream),
        cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return values;
  }
  // Whether the call, in its own way, went well.
  bool Done(ncclResult_t result) const {
    return blocking ? result == ncclSuccess : result == ncclInProgress && Poll(comm) == ncclSuccess;
  }
};

void OnThreads(const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back(body, rank);
  for (auto& thread : threads) thread.join();
}

// Calls `body` on a thread of each rank, rank r on device r.
void OnRanks(bool blocking, const std::function<void(Rank&)>& body) {
  emulated::Configure({.devices = kRanks});
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  OnThreads([&](int number) {
    Rank rank{number, nullptr, nullptr, blocking};
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    ASSERT_EQ(cudaSetDevice(number), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_TRUE(rank.Done(ncclCommInitRankConfig(&rank.comm, kRanks, id, number, &config)));
    body(rank);
    EXPECT_EQ(ncclCommDestroy(rank.comm), ncclSuccess);  // nothing for null
  });
  emulated::Configure({});
}

class NcclTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(All, NcclTest, ::testing::Values(true, false), [](const auto& info) {
  return std::string(info.param ? "Blocking" : "NotBlocking");
});

// Rank r holds 10 r + i. The sum over the ranks is 30 + 3 i.
std::vector<float> Values(int rank, int count) {
  std::vector<float> values(count);
  for (int i = 0; i < count; ++i) values[i] = static_cast<float>(10 * rank + i);
  return values;
}

TEST_P(NcclTest, AllReduceSumsInPlace) {
  OnRanks(GetParam(), [](Rank& rank) {
    float* x = rank.Put(Values(rank.rank, 5));
    ASSERT_TRUE(rank.Done(ncclAllReduce(x, x, 5, ncclFloat32, ncclSum, rank.comm, rank.stream)));
    EXPECT_EQ(rank.Get(x, 5), (std::vector<float>{30, 33, 36, 39, 42}));
  });
}

TEST_P(NcclTest, ReduceScatterGivesEachRankItsPart) {
  OnRanks(GetParam(), [](Rank& rank) {
    float* x = rank.Put(Values(rank.rank, 6));
    float* part = x + 2 * rank.rank;  // in place
    ASSERT_TRUE(
        rank.Done(ncclReduceScatter(x, part, 2, ncclFloat32, ncclSum, rank.comm, rank.stream)));
    const float first = 30.0f + 6 * rank.rank;
    EXPECT_EQ(rank.Get(part, 2), (std::vector<float>{first, first + 3}));
  });
}

TEST_P(NcclTest, AllGatherPutsTheRanksInOrder) {
  OnRanks(GetParam(), [](Rank& rank) {
    float* x = rank.Put(std::vector<float>(6, -1));
    float* mine = rank.Put(Values(rank.rank, 2));
    ASSERT_TRUE(rank.Done(ncclAllGather(mine, x, 2, ncclFloat32, rank.comm, rank.stream)));
    EXPECT_EQ(rank.Get(x, 6), (std::vector<float>{0, 1, 10, 11, 20, 21}));
  });
}

TEST_P(NcclTest, BroadcastTakesTheRootsValues) {
  OnRanks(GetParam(), [](Rank& rank) {
    double* x = rank.Put(std::vector<double>{rank.rank * 1.5});
    ASSERT_TRUE(rank.Done(ncclBroadcast(x, x, 1, ncclFloat64, 2, rank.comm, rank.stream)));
    EXPECT_EQ(rank.Get(x, 1)[0], 3);
  });
}

TEST_P(NcclTest, GroupedSendsAndReceivesAreAnAllToAll) {
  OnRanks(GetParam(), [](Rank& rank) {
    float* send = rank.Put(Values(rank.rank, 3));
    float* recv = rank.Put(std::vector<float>(3, -1));
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int peer = 0; peer < kRanks; ++peer) {
      ASSERT_EQ(ncclSend(send + peer, 1, ncclFloat32, peer, rank.comm, rank.stream), ncclSuccess);
      ASSERT_EQ(ncclRecv(recv + peer, 1, ncclFloat32, peer, rank.comm, rank.stream), ncclSuccess);
    }
    ASSERT_TRUE(rank.Done(ncclGroupEnd()));
    const float first = static_cast<float>(rank.rank);
    EXPECT_EQ(rank.Get(recv, 3), (std::vector<float>{first, first + 10, first + 20}));
  });
}

TEST_P(NcclTest, EveryTypeAndOperation) {
  OnRanks(GetParam(), [](Rank& rank) {
    const auto reduce = [&](auto value, ncclDataType_t type, ncclRedOp_t op) {
      auto* x = rank.Put(std::vector<decltype(value)>{value});
      EXPECT_TRUE(rank.Done(ncclAllReduce(x, x, 1, type, op, rank.comm, rank.stream)));
      return rank.Get(x, 1)[0];
    };
    const int r = rank.rank;
    EXPECT_EQ(reduce(int32_t{r - 1}, ncclInt32, ncclMin), -1);
    EXPECT_EQ(reduce(int64_t{r} << 40, ncclInt64, ncclMax), int64_t{2} << 40);
    EXPECT_EQ(reduce(uint8_t(r + 2), ncclUint8, ncclProd), 24);
    EXPECT_EQ(reduce(0.5 * r, ncclFloat64, ncclSum), 1.5);
    EXPECT_FLOAT_EQ(reduce(float(r), ncclFloat32, ncclAvg), 1);
    // bf16 1, 1/256, 1/256: each addition rounds to 1. f16 has the digits: 1 + 1/128 is 0x3c08.
    EXPECT_EQ(reduce(uint16_t(r == 0 ? 0x3f80 : 0x3b80), ncclBfloat16, ncclSum), 0x3f80);
    EXPECT_EQ(reduce(uint16_t(r == 0 ? 0x3c00 : 0x1c00), ncclFloat16, ncclSum), 0x3c08);
  });
}

TEST_P(NcclTest, WorkOfTheStreamBeforeIsSeen) {
  OnRanks(GetParam(), [](Rank& rank) {
    uint32_t* x = rank.Put(std::vector<uint32_t>(4, 0));
    ASSERT_EQ(cudaMemsetAsync(x, 1 + rank.rank, 16, rank.stream), cudaSuccess);
    ASSERT_TRUE(rank.Done(ncclAllReduce(x, x, 4, ncclUint32, ncclMax, rank.comm, rank.stream)));
    EXPECT_EQ(rank.Get(x, 4), std::vector<uint32_t>(4, 0x03030303));
    int count = 0;
    int user_rank = -1;
    EXPECT_EQ(ncclCommCount(rank.comm, &count), ncclSuccess);
    EXPECT_EQ(ncclCommUserRank(rank.comm, &user_rank), ncclSuccess);
    EXPECT_EQ(count, kRanks);
    EXPECT_EQ(user_rank, rank.rank);
  });
}

TEST_P(NcclTest, AbortEndsTheRanksThatWait) {
  std::atomic<int> waiting{0};
  OnRanks(GetParam(), [&](Rank& rank) {
    if (rank.rank == 2) {  // never calls
      while (waiting < 2) std::this_thread::yield();
      EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
      rank.comm = nullptr;
      return;
    }
    float* x = rank.Put(Values(rank.rank, 5));
    cudaEvent_t event = nullptr;
    ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    ASSERT_TRUE(rank.Done(ncclAllReduce(x, x, 5, ncclFloat32, ncclSum, rank.comm, rank.stream)));
    ASSERT_EQ(cudaEventRecord(event, rank.stream), cudaSuccess);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
    ++waiting;
    while (waiting < 2) std::this_thread::yield();
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
    EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess) << "the stream goes on";
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  });
}

TEST_P(NcclTest, DifferentCallsAreAnErrorOfAllRanks) {
  OnRanks(GetParam(), [](Rank& rank) {
    float* x = rank.Put(Values(0, 6));
    const size_t count = rank.rank == 1 ? 5 : 4;
    ASSERT_TRUE(
        rank.Done(ncclAllReduce(x, x, count, ncclFloat32, ncclSum, rank.comm, rank.stream)));
    EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    EXPECT_EQ(Poll(rank.comm), ncclInternalError);
  });
}

TEST_P(NcclTest, WrongArgumentsAreRefused) {
  OnRanks(GetParam(), [](Rank& rank) {
    float* x = rank.Put(Values(0, 6));
    float host[6] = {};
    const auto gather = [&](const void* send, void* recv, size_t count) {
      return ncclAllGather(send, recv, count, ncclFloat32, rank.comm, rank.stream);
    };
    EXPECT_EQ(gather(host, x, 2), ncclInvalidArgument);
    EXPECT_EQ(gather(x, x, 3), ncclInvalidArgument) << "9 numbers do not fit";
    EXPECT_EQ(ncclSend(x, 1, ncclFloat32, kRanks, rank.comm, rank.stream), ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(rank.comm)).find("no rank 3"), std::string::npos);
    EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  });
}

TEST(NcclNotBlocking, WorkIsLaunchedWhenPolled) {
  OnRanks(false, [](Rank& rank) {
    float* x = rank.Put(Values(rank.rank, 1));
    EXPECT_EQ(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, rank.comm, rank.stream), ncclInProgress);
    EXPECT_EQ(ncclAllReduce(x, x, 1, ncclFloat32, ncclSum, rank.comm, rank.stream),
              ncclInvalidArgument)
        << "before the first is known to be launched";
    EXPECT_EQ(rank.Get(x, 1)[0], 10.0f * rank.rank) << "nothing is on the stream yet";
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(rank.comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclInProgress) << "the first poll is too early";
    EXPECT_EQ(Poll(rank.comm), ncclSuccess);
    EXPECT_EQ(rank.Get(x, 1)[0], 30);
    EXPECT_EQ(ncclCommFinalize(rank.comm), ncclInProgress);
    EXPECT_EQ(Poll(rank.comm), ncclSuccess);
  });
}

TEST(NcclInit, IsInProgressUntilAllRanksAreThere) {
  emulated::Configure({.devices = 2});
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comms[2] = {};
  ASSERT_EQ(ncclCommInitRankConfig(&comms[0], 2, id, 0, &config), ncclInProgress);
  ncclResult_t state = ncclSuccess;
  for (int poll = 0; poll < 5; ++poll) {
    ASSERT_EQ(ncclCommGetAsyncError(comms[0], &state), ncclSuccess);
    EXPECT_EQ(state, ncclInProgress);
  }
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(ncclCommInitRankConfig(&comms[1], 2, id, 1, &config), ncclInProgress);
  for (ncclComm_t comm : comms) {
    EXPECT_EQ(Poll(comm), ncclSuccess);
    EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  }
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ncclConfig_t unset = {};
  EXPECT_EQ(ncclCommInitRankConfig(&comms[0], 2, id, 0, &unset), ncclInvalidArgument);
  EXPECT_EQ(ncclCommInitRankConfig(&comms[0], 2, id, 2, &config), ncclInvalidArgument);
  emulated::Configure({});
}

TEST(NcclInit, RanksOnOneDeviceNeedHostsOfTheirOwn) {
  for (const bool hosts : {false, true}) {
    emulated::Configure({.devices = 1});
    ncclUniqueId id;
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    OnThreads([&](int rank) {
      if (hosts) emulated::SetHost("host" + std::to_string(rank));
      ncclComm_t comm = nullptr;
      EXPECT_EQ(ncclCommInitRank(&comm, kRanks, id, rank), hosts ? ncclSuccess : ncclInvalidUsage);
      if (comm != nullptr) ncclCommDestroy(comm);
    });
  }
  emulated::Configure({});
}

TEST(NcclMemory, IsAllocatedAndRegistered) {
  emulated::Configure({.memory_bytes = 4 << 20});
  ncclUniqueId id;
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ASSERT_EQ(ncclCommInitRank(&comm, 1, id, 0), ncclSuccess);
  void* memory = nullptr;
  void* more = nullptr;
  void* handle = nullptr;
  ASSERT_EQ(ncclMemAlloc(&memory, 3 << 20), ncclSuccess);
  EXPECT_EQ(emulated::UsedBytes(0), 4 << 20) << "in pieces of 2 MiB";
  EXPECT_EQ(ncclMemAlloc(&more, 1), ncclUnhandledCudaError);
  ASSERT_EQ(ncclCommRegister(comm, memory, 3 << 20, &handle), ncclSuccess);
  auto* x = static_cast<float*>(memory);
  ASSERT_EQ(cudaMemset(x, 0, 1 << 20), cudaSuccess);
  ASSERT_EQ(ncclAllReduce(x, x + 1, 1, ncclFloat32, ncclSum, comm, nullptr), ncclSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(emulated::ReadStatistics().collectives, 1);
  EXPECT_EQ(ncclCommDeregister(comm, handle), ncclSuccess);
  EXPECT_EQ(ncclCommRegister(comm, &handle, 8, &more), ncclInvalidArgument) << "the host's memory";
  EXPECT_EQ(ncclMemFree(memory), ncclSuccess);
  EXPECT_EQ(emulated::UsedBytes(0), 0);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
  emulated::Configure({});
}

}  // namespace
}  // namespace sherd::testing
