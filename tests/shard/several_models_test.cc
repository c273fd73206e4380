// Several models on one mesh, one model over two meshes, and several tapes in flight.

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

constexpr int kSteps = 3;

// Of the same model on one plain rank, the sum over steps and ranks.
Whole PlainSums(
    int ranks,
    const std::function<Variable(ShardModel&, const Device&, int rank, int step)>& loss) {
  return PlainGradients(ranks, [&](ShardModel& m, const Device& d, int r) {
    Variable sum = loss(m, d, r, 0);
    for (int step = 1; step < kSteps; ++step) sum = Add(sum, loss(m, d, r, step));
    return sum;
  });
}

void ExpectNothingGathered(const Module& model) {
  for (const Unit* unit : UnitsOf(model)) {
    EXPECT_FALSE(unit->axes().parameters_are_cut && unit->unsharded()) << unit->name();
  }
}

// The student learns from what a teacher of other values says, who runs without a recording.
Variable Distance(const Variable& student, const Variable& teacher) {
  return Energy(Add(student, Scale(teacher, -1.0)));
}

TEST(SeveralModels, ATeacherWithoutRecordingBesideAStudentOnOneMesh) {
  const std::vector<int> order = {0, 1, 2};
  for (int ranks : {1, 2, 3}) {
    for (const bool between : {false, true}) {
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, the teacher ", between ? "between" : "before"));
      // The teacher's forward comes before the student's, or between its forward and backward.
      const auto step_of = [&](ShardModel& student, ShardModel& teacher, const Device& device,
                               int rank, int step, Tape& tape) {
        const Variable x = InputOf(device, rank, static_cast<uint64_t>(step));
        Variable said, told;
        const auto teach = [&] { told = teacher(x, order); };
        if (!between) teach();
        {
          const Recording on(tape);
          said = student(x, order);
        }
        if (between) teach();
        const Recording on(tape);
        tape.Backward(Distance(said, told));
        tape.Reset();
      };
      Whole want;
      {
        const Device device = Device::Cpu();
        ShardModel student, teacher;
        Initialize(student, device, 1);
        Initialize(teacher, device, 2);
        Tape tape;
        for (int rank = 0; rank < ranks; ++rank) {
          for (int step = 0; step < kSteps; ++step) {
            step_of(student, teacher, device, rank, step, tape);
          }
        }
        want = GradientsOf(student, nullptr);
      }
      RunRanks(ranks, [&](World& world) {
        ShardModel student, teacher;
        ShardAll(student, world.mesh(), Sums());
        ShardAll(teacher, world.mesh(), Sums());
        Initialize(student, world.device(), 1);
        Initialize(teacher, world.device(), 2);
        Tape tape;
        for (int step = 0; step < kSteps; ++step) {
          step_of(student, teacher, world.device(), world.rank(), step, tape);
          ExpectNothingGathered(student);
          ExpectNothingGathered(teacher);
        }
        ExpectClose(GradientsOf(student, &world.group()), want);
        EXPECT_TRUE(GradientsOf(teacher, nullptr).empty());
      });
    }
  }
}

// How two models, or two micro-batches, take turns: 0 and 1 are forwards, 2 and 3 their backwards.
const std::array<int, 4> kTurns[] = {{0, 1, 2, 3}, {0, 1, 3, 2}, {0, 2, 1, 3}};

TEST(SeveralModels, TwoStudentsOnOneMeshWithATapeEach) {
  const auto loss = [](ShardModel& m, const Device& d, int r, int step) {
    return Energy(m(InputOf(d, r, static_cast<uint64_t>(step)), {0, 2, 0}));
  };
  for (int ranks : {1, 2, 3}) {
    const Whole want = PlainSums(ranks, loss);
    for (const std::array<int, 4>& turns : kTurns) {
      for (const bool reduce_once : {false, true}) {
        SCOPED_TRACE(absl::StrCat(ranks, " ranks, turns ", &turns - kTurns,
                                  reduce_once ? ", reduced once" : ""));
        RunRanks(ranks, [&](World& world) {
          std::array<ShardModel, 2> models;
          std::array<Tape, 2> tapes;
          for (ShardModel& model : models) {
            ShardAll(model, world.mesh(), Sums({.reduce_once = reduce_once}));
            Initialize(model, world.device(), 1);
          }
          for (int step = 0; step < kSteps; ++step) {
            std::array<Variable, 2> losses;
            for (const int turn : turns) {
              const auto who = static_cast<size_t>(turn % 2);
              const Recording on(tapes[who]);
              if (turn < 2) {
                losses[who] = loss(models[who], world.device(), world.rank(), step);
              } else {
                tapes[who].Backward(losses[who]);
                tapes[who].Reset();
              }
            }
            for (const ShardModel& model : models) ExpectNothingGathered(model);
          }
          for (const ShardModel& model : models) {
            ExpectClose(GradientsOf(model, &world.group()), want);
          }
        });
      }
    }
  }
}

// Micro-batches of one model in flight, as in a pipeline: f0 f1 f2 b0 f3 b1 f4 b2 b3 b4, say.
TEST(SeveralModels, ForwardsAndBackwardsOfMicroBatchesTakeTurns) {
  constexpr int kMicroBatches = 5;
  const auto loss = [](ShardModel& m, const Device& d, int r, int step) {
    return Energy(m(InputOf(d, r, static_cast<uint64_t>(step)), {0, 1, 2, 1}));
  };
  for (int ranks : {1, 2, 3}) {
    const Whole want = PlainGradients(ranks, [&](ShardModel& m, const Device& d, int r) {
      Variable sum = loss(m, d, r, 0);
      for (int k = 1; k < kMicroBatches; ++k) sum = Add(sum, loss(m, d, r, k));
      return sum;
    });
    for (const int in_flight : {1, 2, 3, kMicroBatches}) {
      for (const FullyShardOptions& options :
           {FullyShardOptions{}, FullyShardOptions{.reshard_after_forward = false},
            FullyShardOptions{.prefetch = 2, .reduce_once = true},
            FullyShardOptions{.stage = kZero2}}) {
        for (const GradientSync sync : {GradientSync::kFull, GradientSync::kNone}) {
          SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", in_flight, " in flight"));
          RunRanks(ranks, [&](World& world) {
            ShardModel model;
            ShardAll(model, world.mesh(), Sums(options));
            Initialize(model, world.device(), 1);
            PoisonFreeMemory(world.device());
            SetGradientSync(model, sync);
            std::array<Tape, kMicroBatches> tapes;
            std::array<Variable, kMicroBatches> losses;
            for (int k = 0; k < kMicroBatches + in_flight; ++k) {
              if (k >= in_flight) {
                const auto b = static_cast<size_t>(k - in_flight);
                tapes[b].Backward(losses[b]);
                tapes[b].Reset();
              }
              if (k >= kMicroBatches) continue;
              const auto f = static_cast<size_t>(k);
              const Recording on(tapes[f]);
              losses[f] = loss(model, world.device(), world.rank(), k);
            }
            FinishGradients(model);
            ExpectClose(GradientsOf(model, &world.group()), want);
            ExpectNothingGathered(model);
          });
        }
      }
    }
  }
}

// Blocks 0 and 2 are cut over all ranks, block 1 over pairs: four ranks, two copies of it.
void ShardOverTwoMeshes(ShardModel& model, const World& world, const FullyShardOptions& options,
                        bool root) {
  FullyShard(model.block(0), world.mesh(), Sums(options));
  FullyShard(model.block(1), world.MakeMesh(world.size() / 2), Sums(options));
  FullyShard(model.block(2), world.mesh(), Sums(options));
  if (root) FullyShard(model, world.mesh(), Sums());
}

TEST(SeveralModels, OneModelOverTwoMeshes) {
  const auto loss = [](ShardModel& m, const Device& d, int r, int step) {
    return Energy(m(InputOf(d, r, static_cast<uint64_t>(step)), {0, 1, 2, 1}));
  };
  for (int ranks : {2, 4}) {
    const Whole want = PlainSums(ranks, loss);
    for (const FullyShardOptions& options :
         {FullyShardOptions{}, FullyShardOptions{.reshard_after_forward = false},
          FullyShardOptions{.prefetch = 2, .reduce_once = true},
          FullyShardOptions{.stage = kZero2}}) {
      SCOPED_TRACE(ranks);
      RunRanks(ranks, [&](World& world) {
        ShardModel model;
        ShardOverTwoMeshes(model, world, options, /*root=*/true);
        Initialize(model, world.device(), 1);
        PoisonFreeMemory(world.device());
        for (int step = 0; step < kSteps; ++step) {
          Tape tape;
          const Recording on(tape);
          tape.Backward(loss(model, world.device(), world.rank(), step));
          ExpectNothingGathered(model);
        }
        ExpectClose(GradientsOf(model, &world.group()), want);
      });
    }
  }
}

// A call on the other mesh whose backward never comes leaves nothing gathered or unreduced.
TEST(SeveralModels, ACallOnTheOtherMeshThatNobodyUsesLeavesNothing) {
  const auto loss = [](ShardModel& m, const Device& d, int r) {
    const Variable x = InputOf(d, r);
    const Variable used = m(x, {1});
    m(x, {0, 1});
    return Energy(used);
  };
  const Whole want = PlainGradients(2, loss);
  RunRanks(2, [&](World& world) {
    ShardModel model;
    ShardOverTwoMeshes(model, world, {.reshard_after_forward = false, .reduce_once = true},
                       /*root=*/true);
    Initialize(model, world.device(), 1);
    Tape tape;
    const Recording on(tape);
    tape.Backward(loss(model, world.device(), world.rank()));
    for (const Unit* unit : UnitsOf(model)) EXPECT_FALSE(unit->gradients_pending()) << unit->name();
    ExpectNothingGathered(model);
    ExpectClose(GradientsOf(model, &world.group()), want);
  });
}

TEST(SeveralModels, OneRankRecoversFromAFailureOnTheOtherMesh) {
  const StepLoss loss = [](ShardModel& m, const Device& d, int r) {
    return Energy(m(InputOf(d, r), {0, 1}));
  };
  const Whole want = PlainGradients(1, loss);
  RunRanks(1, [&](World& world) {
    ShardModel model;
    const Mesh other(world.mesh().groups(), nullptr, world.device());
    FullyShard(model.block(0), world.mesh(), Sums());
    FullyShard(model.block(1), other, Sums({.reduce_once = true}));
    FullyShard(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    Tape tape;
    {
      const Recording on(tape);
      const Variable value = loss(model, world.device(), 0);
      model.block(1).down.weight().MutableLocal();
      EXPECT_TRUE(Contains(ErrorOf([&] { tape.Backward(value); }), "changed between"));
      tape.Reset();
    }
    Recover(model);
    const Recording on(tape);
    ASSERT_EQ(ErrorOf([&] { tape.Backward(loss(model, world.device(), 0)); }), "no error");
    ExpectClose(GradientsOf(model, nullptr), want);
    ExpectNothingGathered(model);
  });
}

}  // namespace
}  // namespace sherd::testing
