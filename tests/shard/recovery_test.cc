// What a failed step leaves on disk, and training that goes on in the same process without the rank
// that failed.

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/core/events.h"
#include "sherd/shard/context.h"
#include "sherd/shard/flight_recorder.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

Variable LossOf(ShardModel& model, const Device& device, int rank) {
  return Energy(model(InputOf(device, rank), {0, 1, 0, 2}));
}

// The gradients of one backward of a new model over all ranks of a world.
Whole StepIn(World& world) {
  ShardModel model;
  ShardAll(model, world.mesh(), Sums());
  Initialize(model, world.device(), 1);
  Tape tape;
  const Recording on(tape);
  tape.Backward(LossOf(model, world.device(), world.rank()));
  return GradientsOf(model, &world.group());
}

// Trains until the step fails; returns the text.
std::string FailingStep(World& world, int victim) {
  ShardModel model;
  ShardAll(model, world.mesh(), Sums());
  Initialize(model, world.device(), 1);
  model.block(1).fails = world.rank() == victim;
  return ErrorOf([&] {
    Tape tape;
    const Recording on(tape);
    tape.Backward(LossOf(model, world.device(), world.rank()));
  });
}

// Three ranks, of which `victim` fails in a forward and then leaves, or goes on with the others.
void ExpectGoesOn(int victim, bool leaves) {
  SCOPED_TRACE(absl::StrCat("rank ", victim, leaves ? " leaves" : " stays"));
  const std::shared_ptr<Store> store = MakeMemoryStore();
  std::mutex mutex;
  std::vector<Whole> got;
  const int size = leaves ? 2 : 3;
  const auto run = [&](int rank) {
    absl::StatusOr<World> world = World::FromStore(store, rank, 3, {.threads = 1});
    ASSERT_TRUE(world.ok()) << world.status();
    EXPECT_TRUE(Contains(FailingStep(*world, victim), "the block broke"));
    if (leaves && rank == victim) return;
    absl::StatusOr<World> next = world->Regroup({.expected_ranks = size});
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_EQ(next->size(), size);
    Whole gradients = StepIn(*next);
    EXPECT_TRUE(next->Finish().ok());
    std::lock_guard<std::mutex> lock(mutex);
    got.push_back(std::move(gradients));
  };
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) ranks.emplace_back(run, rank);
  for (std::thread& thread : ranks) thread.join();
  ASSERT_EQ(got.size(), static_cast<size_t>(size));
  const Whole plain = PlainGradients(size, LossOf);
  for (const Whole& gradients : got) ExpectClose(gradients, plain);
  // And those of a world that was never another one, to the last bit.
  RunRanks(size, [&](World& world) { EXPECT_EQ(StepIn(world), got[0]); });
}

TEST(RecoveryTest, TwoRanksGoOnWithTheGradientsOfTwo) {
  for (int victim = 0; victim < 3; ++victim) ExpectGoesOn(victim, /*leaves=*/true);
}

TEST(RecoveryTest, AllRanksGoOnAfterOneHasFailed) { ExpectGoesOn(1, /*leaves=*/false); }

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string FlightPath(int rank) {
  return absl::StrCat(::testing::TempDir(), "/sherd_flight_", getpid(), "_", rank);
}

TEST(RecoveryTest, AFailedStepLeavesTheFlightRecordOfEveryRank) {
  const auto run = [](World& world) {
    EventLog log({.rank = world.rank()});
    const std::shared_ptr<ShardContext> context = ShardContext::Of(world.mesh());
    context->SetEvents(&log, FlightPath(world.rank()));
    EXPECT_TRUE(Contains(FailingStep(world, /*victim=*/1), "the block broke"));
    context->SetEvents(nullptr);
  };
  ErrorOf([&] { RunRanks(3, run); });
  for (int rank = 0; rank < 3; ++rank) {
    const std::string text = Contents(FlightPath(rank));
    unlink(FlightPath(rank).c_str());
    EXPECT_EQ(text.rfind(absl::StrCat("rank ", rank, " failed: "), 0), 0u) << text;
    EXPECT_TRUE(Contains(text, "the block broke"));
    EXPECT_TRUE(Contains(text, "all_gather block0 #1"));
  }
}

TEST(RecoveryTest, AFlightRecordHoldsAllThatTheLogHas) {
  EventLog log({.rank = 2});
  for (int i = 0; i < 100; ++i) log.Instant({.kind = EventKind::kReshard});
  ASSERT_TRUE(WriteFlightRecord(FlightPath(9), "the loss is NaN", log).ok());
  const std::string text = Contents(FlightPath(9));
  unlink(FlightPath(9).c_str());
  EXPECT_EQ(text.rfind("rank 2 failed: the loss is NaN\nrank 2: 0 running, 0 queued\n", 0), 0u);
  EXPECT_TRUE(Contains(text, "latest 100 of 100 records"));
}

}  // namespace
}  // namespace sherd::testing
