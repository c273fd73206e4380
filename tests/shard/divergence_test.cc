// Ranks that make different calls of units get an error on all of them that names the units, the
// ranks and what to do, at once or when the deadline of the first collective passes.

#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "sherd/checkpoint/checkpoint.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

using Order = std::vector<int>;

// A step of one rank.
class Rank {
 public:
  Rank(World& world, const FullyShardOptions& options) : world(world) {
    ShardAll(model, world.mesh(), Sums(options));
    Initialize(model, world.device(), 1);
  }
  Variable Forward(const Order& order) {
    return Energy(model(InputOf(world.device(), world.rank()), order));
  }
  void Train(const Order& order) {
    const Recording on(tape);
    tape.Backward(Forward(order));
    tape.Reset();
  }
  World& world;
  ShardModel model;
  Tape tape;
};

struct Case {
  int ranks = 2;
  std::function<void(Rank&)> step;
  // Of a collective; long where the ranks are to see the difference themselves.
  absl::Duration timeout = absl::Minutes(1);
  FullyShardOptions options = {};
};

// What the ranks are told, by the step or by the next collective of all of them.
std::vector<std::string> TextsOf(const Case& c) {
  std::mutex mutex;
  std::vector<std::string> texts(static_cast<size_t>(c.ranks));
  const auto run = [&](World& world) {
    Rank rank(world, c.options);
    std::string text = ErrorOf([&] {
      c.step(rank);
      UnitOf(rank.model)->context()->WaitReductions(0);
    });
    const bool failed = text != "no error";
    if (!failed) text = ErrorOf([&] { world.group().Barrier({.op = "barrier"}); });
    {
      const std::lock_guard<std::mutex> lock(mutex);
      texts[static_cast<size_t>(world.rank())] = text;
    }
    rank.tape.Reset();
    if (!failed) return;
    EXPECT_TRUE(Contains(ErrorOf([&] { rank.Forward({0}); }), "an earlier step failed"));
  };
  EXPECT_NE(ErrorOf([&] { RunRanks(c.ranks, run, {.collective_timeout = c.timeout}); }),
            "no error");
  return texts;
}

// All ranks are told these; those that were inside a step also what to do.
void ExpectTold(const Case& c, const std::vector<std::string>& parts) {
  for (const std::string& text : TextsOf(c)) {
    for (const std::string& part : parts) EXPECT_TRUE(Contains(text, part));
  }
}

const std::string kAdvice = "calls Participate(module)";

TEST(Divergence, AnotherUnitOfTheSameShapeIsSeenAtOnce) {
  ExpectTold({.step =
                  [](Rank& r) {
                    r.Train(r.world.rank() == 0 ? Order{0, 1} : Order{0, 2});
                  }},
             {"different collectives", "rank 0", "unit 'block1'", "rank 1", "unit 'block2'",
              "all_gather", kAdvice});
}

TEST(Divergence, OneOfThreeRanksThatOmitsACallIsNamedToAll) {
  ExpectTold(
      {.ranks = 3,
       .step =
           [](Rank& r) {
             r.Train(r.world.rank() == 2 ? Order{0, 2} : Order{0, 1, 2});
           }},
      {"different collectives", "rank 0", "unit 'block1'", "rank 2", "unit 'block2'", kAdvice});
}

TEST(Divergence, ACallThatRanksOmitBeforeTheirBackward) {
  ExpectTold(
      {.step =
           [](Rank& r) {
             r.Train(r.world.rank() == 0 ? Order{0, 1} : Order{0});
           }},
      {"different collectives", "rank 0", "unit 'block1'", "rank 1", "unit 'block0'", kAdvice});
}

TEST(Divergence, MoreCallsOnOneRankThatKeepsItsUnits) {
  ExpectTold({.step =
                  [](Rank& r) {
                    r.Train(r.world.rank() == 0 ? Order{0, 0} : Order{0});
                  },
              .options = {.reshard_after_forward = false, .reshard_after_backward = false}},
             {"different collectives", "reduce_scatter", "rank 0", "unit 'block0'", "rank 1",
              "unit 'the root module'", kAdvice});
}

TEST(Divergence, MoreCallsOnOneRankThatReshards) {
  // Rank 1's gather for its backward is taken for that of the second forward, so the streams stand
  // still later.
  ExpectTold({.step =
                  [](Rank& r) {
                    r.Train(r.world.rank() == 0 ? Order{0, 0} : Order{0});
                  },
              .timeout = absl::Seconds(3)},
             {"rank 0", "rank 1", "unit 'block0'", "all_gather", "reduce_scatter", kAdvice});
}

TEST(Divergence, AForwardWithoutBackwardBesideAStep) {
  ExpectTold({.step =
                  [](Rank& r) {
                    if (r.world.rank() == 1) return r.Train({0});
                    for (int k = 0; k < 2; ++k) r.Forward({0});
                  }},
             {"different collectives", "rank 0", "unit 'the root module'", "rank 1",
              "unit 'block0'", kAdvice});
}

TEST(Divergence, ABackwardThatNeedsAUnitOnOneRankOnly) {
  ExpectTold(
      {.step =
           [](Rank& r) {
             const Recording on(r.tape);
             const Variable x = InputOf(r.world.device(), r.world.rank());
             const Variable y = r.model.block(0)(x), z = r.model.block(1)(x);
             r.tape.Backward(Energy(r.world.rank() == 0 ? y : z));
           }},
      {"different collectives", "rank 0", "unit 'block0'", "rank 1", "unit 'block1'", kAdvice});
}

TEST(Divergence, ParticipationInAnotherUnit) {
  ExpectTold({.step =
                  [](Rank& r) {
                    r.Train(r.world.rank() == 0 ? Order{0, 1} : Order{0, -3});
                  }},
             {"different collectives", "unit 'block1'", "unit 'block2'", kAdvice});
}

TEST(Divergence, InARecompute) {
  ExpectTold({.step =
                  [](Rank& r) {
                    const Recording on(r.tape);
                    ShardModel* const model = &r.model;
                    const int rank = r.world.rank();
                    const auto region = [model, rank](const Variable& x) {
                      // The first pass calls the same on all ranks, the recompute does not.
                      if (InRecompute() && rank == 1) return model->block(1)(x);
                      return model->block(0)(x);
                    };
                    const Variable x = InputOf(r.world.device(), rank);
                    r.tape.Backward(Energy(Checkpoint(region, x)));
                  }},
             {"different collectives", "unit 'block0'", "unit 'block1'", kAdvice});
}

TEST(Divergence, ARankThatCallsNothingIsNamedWhenTheDeadlinePasses) {
  ExpectTold({.step =
                  [](Rank& r) {
                    if (r.world.rank() == 0) r.Train({0});
                  },
              .timeout = absl::Seconds(2)},
             {"rank 1", "all_gather", "unit 'the root module'"});
}

TEST(Divergence, ARankThatGoesOnToItsReductionsIsSaidToBeThere) {
  ExpectTold({.step = [](Rank& r) { r.Train(r.world.rank() == 0 ? Order{1} : Order{}); },
              .timeout = absl::Seconds(2)},
             {"rank 0", "all_gather", "unit 'block1'", "rank 1", "reduce_scatter",
              "unit 'the root module'", kAdvice});
}

}  // namespace
}  // namespace sherd::testing
