// Ranks that somebody else has connected, parts of them, and units that live on different parts.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gloo/barrier.h"
#include "gloo/rendezvous/context.h"
#include "gloo/rendezvous/hash_store.h"
#include "gloo/transport/tcp/device.h"
#include "sherd/runtime/comm/gloo_context.h"
#include "tests/interop/small_unit.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

void OnThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (std::thread& thread : threads) thread.join();
}

// As the program around us connects its ranks.
std::shared_ptr<gloo::Context> ConnectForeign(gloo::rendezvous::Store& store, int rank, int size) {
  gloo::transport::tcp::attr attr;
  attr.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(attr);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  context->setTimeout(std::chrono::seconds(20));
  context->connectFullMesh(store, device);
  return context;
}

void ForeignBarrier(const std::shared_ptr<gloo::Context>& context) {
  gloo::BarrierOptions barrier(context);
  gloo::barrier(barrier);
}

TEST(GlooContext, BecomesAGroupAndStaysTheCallers) {
  for (const int size : {1, 2, 3}) {
    gloo::rendezvous::HashStore store;
    OnThreads(size, [&](int rank) {
      const auto context = ConnectForeign(store, rank, size);
      {
        auto group = GroupFromGloo(context, {.timeout = absl::Seconds(30)});
        ASSERT_TRUE(group.ok()) << group.status();
        EXPECT_EQ((*group)->rank(), rank);
        EXPECT_EQ((*group)->size(), size);
        double value = rank + 1;
        (*group)->AllReduce(&value, 1, DType::kF64);
        EXPECT_EQ(value, size * (size + 1) / 2);
        ForeignBarrier(context);  // beside our group
        if (rank == 0) (*group)->Abort(absl::CancelledError("enough"));
      }
      ForeignBarrier(context);  // and after its end
    });
  }
}

TEST(GlooContext, BecomesAWorldThatTrains) {
  gloo::rendezvous::HashStore store;
  OnThreads(2, [&](int rank) {
    auto world = WorldFromGloo(ConnectForeign(store, rank, 2), {.threads = 1});
    ASSERT_TRUE(world.ok()) << world.status();
    {
      SmallUnit unit("weight", 5, world->mesh(), 10);
      unit.Forward();
      unit.Backward(rank + 1);
      unit.Expect(3);
    }
    EXPECT_TRUE(world->Finish().ok());
  });
}

TEST(GlooContext, ThatIsBrokenIsAnErrorOnThoseWhoAreLeft) {
  gloo::rendezvous::HashStore store;
  OnThreads(2, [&](int rank) {
    const auto context = ConnectForeign(store, rank, 2);
    ForeignBarrier(context);
    if (rank == 1) return context->closeConnections();
    const auto group = GroupFromGloo(context, {.connect_timeout = absl::Seconds(5)});
    // The broadcast is sent into a connection that may not be known to be closed yet; then nobody
    // arrives at the store.
    EXPECT_FALSE(group.ok());
    const std::string text(group.status().message());
    EXPECT_TRUE(text.find("could not carry a broadcast") != std::string::npos ||
                text.find("rank 1 of 2 did not arrive") != std::string::npos)
        << text;
  });
  EXPECT_EQ(GroupFromGloo(nullptr, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

// Four ranks of a program of which the even ones are one job and the odd ones another.
TEST(Groups, ExplicitRanksOverASubset) {
  const std::shared_ptr<Store> all = MakeMemoryStore();
  OnThreads(4, [&](int rank) {
    const bool odd = rank % 2 == 1;
    auto world =
        World::FromStore(MakePrefixStore(all, odd ? "odd/" : "even/"), rank / 2, 2, {.threads = 1});
    ASSERT_TRUE(world.ok()) << world.status();
    {
      SmallUnit unit("weight", 5, world->mesh(), odd ? 100 : 0);
      unit.Forward();
      unit.Backward(rank + 1);
      unit.Expect(odd ? 2 + 4 : 1 + 3);
    }
    EXPECT_TRUE(world->Finish().ok());
  });
}

// A mesh of the ranks whose remainder by `parts` is this rank's.
Mesh PartMesh(World& world, int parts) {
  std::vector<int> ranks;
  for (int r = world.rank() % parts; r < world.size(); r += parts) ranks.push_back(r);
  return Mesh(world.group().Split(absl::StrCat("part of ", parts), ranks), MakeMemoryStore(),
              world.device(), world.log());
}

TEST(Groups, TwoModelsOfOneProcessOnDifferentGroups) {
  RunRanks(4, [&](World& world) {
    SmallUnit student("student", 7, world.mesh(), 0);
    SmallUnit teacher("teacher", 5, PartMesh(world, 2), 50 + world.rank() % 2);
    for (int step = 1; step <= 2; ++step) {
      student.Forward();
      teacher.Forward();
      teacher.Backward(world.rank() + 1);
      student.Backward(world.rank() + 1);
      student.Expect(step * 10);
      teacher.Expect(step * (world.rank() % 2 == 0 ? 1 + 3 : 2 + 4));
    }
  });
}

// A dense layer on all ranks around experts: each pair of ranks holds one, cut in two, and another
// number of tokens comes to each. Both wait for nobody outside their mesh.
TEST(Groups, ExpertsOnAMeshOfTheirOwn) {
  RunRanks(4, [&](World& world) {
    const int expert = world.rank() % 2;
    SmallUnit dense("dense", 9, world.mesh(), 0);
    SmallUnit mine(absl::StrCat("expert", expert), 6, PartMesh(world, 2), 20 * expert);
    const int calls = 1 + expert;  // the second expert is called twice
    dense.Forward();
    for (int call = 0; call < calls; ++call) mine.Forward();
    for (int call = 0; call < calls; ++call) mine.Backward(world.rank() + 1);
    dense.Backward(world.rank() + 1);
    dense.Expect(1 + 2 + 3 + 4);
    mine.Expect(calls * (expert == 0 ? 1 + 3 : 2 + 4));
    EXPECT_EQ(mine.unit.gathers(), 2 * calls);
    EXPECT_EQ(mine.unit.local(0).numel(), 3);
    EXPECT_EQ(dense.unit.gathers(), 2);
  });
}

TEST(Groups, LogLinesOfAPartSayTheRankInTheWorld) {
  std::mutex mutex;
  std::multimap<int, std::string> lines;  // by rank
  std::atomic<int> arrived = 0;
  const LogSink log = [&](const LogRecord& record) {
    const std::lock_guard<std::mutex> lock(mutex);
    lines.emplace(record.rank, std::string(record.text));
    EXPECT_EQ(record.level, LogLevel::kError);
  };
  RunRanks(4,
           [&](World& world) {
             const Mesh part = PartMesh(world, 2);
             const auto context = ShardContext::Of(part);
             EventLog events;
             context->SetEvents(&events);
             ++arrived;  // a barrier could be hit by the failure itself
             while (arrived < 4) std::this_thread::yield();
             if (world.rank() == 3) context->Fail("out of data");
             context->SetEvents(nullptr);
             EXPECT_EQ(world.Finish().ok(), false);
           },
           {.log = log});
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines.begin()->first, 3) << "which is rank 1 of its part";
  EXPECT_NE(lines.begin()->second.find("out of data"), std::string::npos);
}

TEST(Groups, AWorldWithHalfASourceOfMemoryIsAnError) {
  const auto world = World::FromStore(
      nullptr, 0, 1, {.memory = {.allocate = [](int64_t) -> void* { return nullptr; }}});
  EXPECT_EQ(world.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sherd::testing
