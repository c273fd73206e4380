// Units in the memory of the program around them, and what may be handed on of theirs.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "sherd/runtime/base/status_of.h"
#include "sherd/runtime/interop/dlpack.h"
#include "tests/interop/small_unit.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

// Counts what is out, and fills what it hands out, so that nobody can rely on zeros.
struct Pool {
  MemorySource Source() {
    return {.allocate =
                [this](int64_t bytes) {
                  void* block = std::aligned_alloc(64, static_cast<size_t>(bytes));
                  std::memset(block, 0xff, static_cast<size_t>(bytes));
                  out += bytes;
                  ++blocks;
                  return block;
                },
            .free =
                [this](void* block, int64_t bytes) {
                  std::free(block);
                  out -= bytes;
                }};
  }
  std::atomic<int64_t> out = 0;
  std::atomic<int64_t> blocks = 0;
};

TEST(EngineMemory, AStepTakesAllItsMemoryFromTheProgramAndGivesItBack) {
  for (const int ranks : {1, 2, 3}) {
    std::vector<Pool> pools(static_cast<size_t>(ranks));
    const std::shared_ptr<Store> store = MakeMemoryStore();
    const auto rank_body = [&](int rank) {
      Pool& pool = pools[static_cast<size_t>(rank)];
      auto world = World::FromStore(store, rank, ranks, {.threads = 1, .memory = pool.Source()});
      ASSERT_TRUE(world.ok()) << world.status();
      {
        SmallUnit unit("weight", 50, world->mesh(), 3);
        for (int step = 1; step <= 2; ++step) {
          unit.Forward();
          unit.Backward(rank + 1);
          unit.Expect(step * ranks * (ranks + 1) / 2);
        }
        EXPECT_EQ(pool.out, world->device().allocator().stats().total.current_bytes);
        EXPECT_GT(pool.blocks, 1);
        EXPECT_GE(pool.out, 2 * unit.unit.layout().shard_bytes()) << "shard and gradient shard";
      }
      EXPECT_TRUE(world->Finish().ok());
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(rank_body, rank);
    for (std::thread& thread : threads) thread.join();
    for (const Pool& pool : pools) EXPECT_EQ(pool.out, 0);
  }
}

TEST(EngineMemory, OwnedPiecesAreHandedOnAndGatheredOnesAreNot) {
  RunRanks(2, [](World& world) {
    SmallUnit small("weight", 6, world.mesh(), 0);
    Unit& unit = small.unit;
    // An optimizer elsewhere writes the piece this rank owns: -1 for element 0, -2 for 1, ...
    dlpack::ManagedVersioned* piece = ToDlpack(unit.local(0));
    ASSERT_EQ(piece->array.ndim, 1);
    ASSERT_EQ(piece->array.shape[0], 3);
    for (int64_t k = 0; k < 3; ++k) {
      static_cast<double*>(piece->array.data)[k] =
          static_cast<double>(-1 - k - unit.local_offset(0));
    }
    piece->deleter(piece);
    unit.EnterForward(2);
    EXPECT_EQ(unit.full(0).ToHost<double>(), (std::vector<double>{-1, -2, -3, -4, -5, -6}));
    const absl::Status refused = StatusOf([&] { ToDlpack(unit.full(0)); });
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(std::string(refused.message()).find("comes and goes"), std::string::npos);
    unit.ExitForward();
  });
}

}  // namespace
}  // namespace sherd::testing
