// Measures every collective: comm_bench [MiB of the full buffer] [ranks as threads].
//
// Under a launcher each process is a rank; without one, the ranks are threads. Prints, on rank 0,
// the median and the best of eleven runs and the bandwidth of the best in the terms of nccl-tests:
// the bytes each rank sends over the wire, (W-1)/W of the buffer (twice that for all_reduce) a
// second.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "sherd/runtime/comm/world.h"

namespace {

using Clock = std::chrono::steady_clock;
using sherd::DType;
using sherd::World;

constexpr int kRuns = 11;

void Measure(World& world, const char* name, double wire_bytes, const std::function<void()>& body) {
  std::vector<double> seconds;
  for (int run = 0; run < kRuns + 2; ++run) {
    world.group().Barrier();
    const auto start = Clock::now();
    body();
    if (run >= 2) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::sort(seconds.begin(), seconds.end());
  if (world.rank() != 0) return;
  std::printf("%-24s %10.3f %10.3f", name, seconds[kRuns / 2] * 1e3, seconds.front() * 1e3);
  if (wire_bytes > 0) std::printf(" %8.2f", wire_bytes / seconds.front() * 1e-9);
  std::printf("\n");
  std::fflush(stdout);
}

void Bench(World& world, int64_t mebibytes) {
  const int64_t ranks = world.size();
  const int64_t n = (mebibytes << 20) / 4 / ranks / 16 * 16;  // f32 elements of a shard
  std::vector<float> full(static_cast<size_t>(n * ranks), 1.0f);
  std::vector<float> shard(static_cast<size_t>(n), 1.0f);
  sherd::ProcessGroup& group = world.group();
  const double wire = static_cast<double>(n * 4 * (ranks - 1));
  if (world.rank() == 0) {
    std::printf("%d ranks, %lld MiB\n%-24s %10s %10s %8s\n", world.size(),
                static_cast<long long>(mebibytes), "", "median ms", "best ms", "GB/s");
  }
  char* own = reinterpret_cast<char*>(full.data()) + world.rank() * n * 4;
  Measure(world, "all_gather in place", wire, [&] { group.AllGather(own, full.data(), n * 4); });
  Measure(world, "all_gather", wire, [&] { group.AllGather(shard.data(), full.data(), n * 4); });
  Measure(world, "reduce_scatter f32", wire,
          [&] { group.ReduceScatter(full.data(), shard.data(), n, DType::kF32, false); });
  Measure(world, "reduce_scatter f32 add", wire,
          [&] { group.ReduceScatter(full.data(), shard.data(), n, DType::kF32, true); });
  Measure(world, "reduce_scatter bf16", wire,
          [&] { group.ReduceScatter(full.data(), shard.data(), 2 * n, DType::kBF16, false); });
  Measure(world, "all_reduce f32", 2 * wire,
          [&] { group.AllReduce(full.data(), n * ranks, DType::kF32); });
  Measure(world, "broadcast", static_cast<double>(n * 4 * ranks),
          [&] { group.Broadcast(full.data(), n * 4 * ranks, 0); });
  Measure(world, "all_reduce of 64 bytes", 0,
          [&] { group.AllReduce(full.data(), 16, DType::kF32); });
  Measure(world, "all_reduce of 32 KiB", 0,
          [&] { group.AllReduce(full.data(), 8192, DType::kF32); });
  Measure(world, "barrier", 0, [&] { group.Barrier(); });
}

int Run(int64_t mebibytes, int threads) {
  absl::StatusOr<World> launched = World::FromEnvironment();
  if (launched.ok() && launched->size() > 1) {
    Bench(*launched, mebibytes);
    return launched->Finish().ok() ? 0 : 1;
  }
  const std::shared_ptr<sherd::Store> store = sherd::MakeMemoryStore();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < threads; ++rank) {
    ranks.emplace_back([=] {
      absl::StatusOr<World> world = World::FromStore(store, rank, threads, {.threads = 1});
      if (!world.ok()) std::abort();
      Bench(*world, mebibytes);
      static_cast<void>(world->Finish());
    });
  }
  for (std::thread& thread : ranks) thread.join();
  return launched.ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return Run(argc > 1 ? std::atoi(argv[1]) : 64, argc > 2 ? std::atoi(argv[2]) : 2);
}
