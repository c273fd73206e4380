// What a call of FullyShard claims, where its pieces lie, and what it refuses.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/adamw.h"
#include "tests/shard/steps.h"

namespace sherd::testing {
namespace {

constexpr int64_t kC = ShardBlock::kChannels;

std::vector<std::string> NamesIn(const Module& module, const Module& root) {
  std::vector<std::string> names;
  for (const Parameter& p : root.parameters()) {
    if (UnitOf(p) != nullptr && UnitOf(p) == UnitOf(module)) names.push_back(p.name());
  }
  return names;
}

TEST(FsdpInit, ACallClaimsWhatNoInnerCallHas) {
  RunRanks(2, [](World& world) {
    ShardModel model(2);
    FullyShard(model.block(0).up, world.mesh(), Sums());
    FullyShard(model.block(0), world.mesh(), Sums());
    FullyShard(model, world.mesh(), Sums());
    using Names = std::vector<std::string>;
    EXPECT_EQ(NamesIn(model.block(0).up, model), (Names{"block0.up.weight"}));
    EXPECT_EQ(NamesIn(model.block(0), model), (Names{"block0.norm.weight", "block0.down.weight"}));
    EXPECT_EQ(NamesIn(model, model), (Names{"block1.norm.weight", "block1.up.weight",
                                            "block1.down.weight", "head.weight"}));
    EXPECT_EQ(UnitOf(model.block(1)), nullptr);
    EXPECT_EQ(UnitsOf(model).size(), 3u);
    EXPECT_EQ(UnitsOf(model)[0], UnitOf(model)) << "the root first";
  });
}

TEST(FsdpInit, AListIsOneUnitOfAllItsModules) {
  RunRanks(2, [](World& world) {
    ShardModel model(2);
    FullyShard({&model.block(1), &model.head}, world.mesh(), Sums());
    FullyShard(model, world.mesh(), Sums());
    EXPECT_EQ(UnitOf(model.block(1)), UnitOf(model.head));
    EXPECT_EQ(UnitOf(model.head)->parameters(), 4);
    EXPECT_EQ(UnitOf(model)->parameters(), 3);
    EXPECT_EQ(UnitsOf(model).size(), 2u);
  });
}

// A weight that is registered twice, in one unit, is one parameter of it.
TEST(FsdpInit, ASharedWeightIsClaimedOnce) {
  struct Tied : Module {
    Tied() {
      RegisterModule("a", a);
      RegisterModule("b", b);
      b.Tie(a.weight());
    }
    struct User : Module {
      void Tie(const Parameter& p) { RegisterTied(p); }
    };
    LinearLayer a{3, 3, Initializer::Normal(1.0), DType::kF64};
    User b;
  };
  RunRanks(2, [](World& world) {
    Tied tied;
    FullyShard(tied.b, world.mesh(), Sums());
    EXPECT_EQ(UnitOf(tied.b)->parameters(), 0) << "it is the common ancestor's";
    FullyShard(tied, world.mesh(), Sums());
    EXPECT_EQ(UnitOf(tied)->parameters(), 1);
    EXPECT_EQ(UnitOf(tied)->layout().segments()[0].elems, 9);
  });
}

// The flat space of a block is norm (5), up (35), down (35): 75 elements in chunks of
// ceil(75 / W); the last rank's end is padding.
TEST(FsdpInit, PiecesAreTheRanksPartsOfTheFlatSpace) {
  const Device device = Device::Cpu();
  ShardModel plain(1);
  Initialize(plain, device, 1);
  std::vector<double> flat;
  for (const Parameter& p : plain.block(0).parameters()) {
    const std::vector<double> values = p.local().ToHost<double>();
    flat.insert(flat.end(), values.begin(), values.end());
  }
  ASSERT_EQ(flat.size(), 75u);
  for (int ranks : {1, 2, 3, 4}) {
    const int64_t chunk = (75 + ranks - 1) / ranks;
    RunRanks(ranks, [&](World& world) {
      ShardModel model(1);
      FullyShard(model.block(0), world.mesh(), Sums());
      FullyShard(model, world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      std::vector<double> mine;
      for (const Parameter& p : model.block(0).parameters()) {
        const std::vector<double> values = p.local().ToHost<double>();
        mine.insert(mine.end(), values.begin(), values.end());
      }
      const int64_t begin = std::min<int64_t>(75, chunk * world.rank());
      const int64_t end = std::min<int64_t>(75, begin + chunk);
      EXPECT_EQ(mine, std::vector<double>(flat.begin() + begin, flat.begin() + end));
    });
  }
}

TEST(FsdpInit, TheWholeMeshIsTheMeshOfOneAxis) {
  RunRanks(3, [](World& world) {
    Whole gradients[2];
    for (bool made : {false, true}) {
      ShardModel model(2);
      ShardAll(model, made ? world.MakeMesh(3) : world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      Tape tape;
      const Recording on(tape);
      tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0, 1})));
      gradients[made ? 1 : 0] = GradientsOf(model, &world.group());
    }
    EXPECT_EQ(gradients[0], gradients[1]) << "bits";
  });
}

TEST(FsdpInit, RefusesASecondOwner) {
  RunRanks(1, [](World& world) {
    ShardModel model(2);
    FullyShard(model, world.mesh(), Sums());
    ExpectErrorHas(ErrorOf([&] { FullyShard(model, world.mesh(), Sums()); }),
                   {"[FullyShard]", "a unit already"});
    // From the top down: the root has everything.
    ExpectErrorHas(
        ErrorOf([&] { FullyShard(model.block(0), world.mesh(), Sums()); }),
        {"[FullyShard]", "'block0.norm.weight'", "(in block0)", "the root module", "owns it"});
    EXPECT_EQ(UnitOf(model.block(0)), nullptr);
    EXPECT_EQ(UnitOf(model)->parameters(), 7);
  });
}

// Of a sibling's weight, when no ancestor knows of it.
TEST(FsdpInit, ATiedWeightOfTwoUnitsNamesBoth) {
  struct User : Module {
    explicit User(const Parameter& p) { RegisterTied(p); }
  };
  struct Holder : Module {
    explicit Holder(Module& module) { RegisterModule("inside", module); }
  };
  RunRanks(1, [](World& world) {
    ShardModel model(1);
    User user(model.head.weight());
    Holder other(user);
    FullyShard(model.head, world.mesh(), Sums());
    ExpectErrorHas(ErrorOf([&] { FullyShard(user, world.mesh(), Sums()); }),
                   {"'head.weight'", "shared with head", "(in inside)", "common ancestor"});
  });
}

TEST(FsdpInit, ReadingWhatWasNeverGivenValuesNamesTheParameter) {
  for (int ranks : {1, 2}) {
    RunRanks(ranks, [](World& world) {
      ShardModel model(1);
      ShardAll(model, world.mesh(), Sums());
      const auto call = [&] { model(InputOf(world.device(), world.rank()), {0}); };
      ExpectErrorHas(ErrorOf(call), {"'head.weight'", "before it was initialised or loaded"});
      ExpectErrorHas(ErrorOf([&] { StartUnshard(model.block(0)); }),
                     {"'block0.norm.weight'", "before it was initialised or loaded"});
      ExpectErrorHas(ErrorOf([&] { UnitScope scope(model.block(0)); }), {"'block0.norm.weight'"});
      Initialize(model, world.device(), 1);
      EXPECT_EQ(ErrorOf(call), "no error");
    });
  }
}

// y = x scaled by a number, shifted by another, and by a row of two.
class Scalars : public Module {
 public:
  Scalars()
      : factor(RegisterParameter("factor", Shape(), Initializer::Constant(1.5), DType::kF64)),
        shift(RegisterParameter("shift", Shape(), Initializer::Constant(-0.5), DType::kF64)),
        row(RegisterParameter("row", {2}, Initializer::Constant(2.0), DType::kF64)) {}
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Scalars& self, const Variable& x) {
          return Add(Mul(Add(Mul(x, self.factor), self.shift), self.row), Variable(x.value()));
        },
        x);
  }
  Parameter factor, shift, row;
};

// Parameters of no dimension, and ranks without a piece: d of the sum of y is, with x of each rank
// [[1, 2], [3, r]], for the factor 2 (1 + 2 + 3 + r), for the shift 8, for a column of the row the
// column's sum times 1.5 minus 1.
TEST(FsdpInit, ScalarsAndEmptyPiecesTrain) {
  for (int ranks : {1, 2, 3, 4}) {
    for (const Stage& stage : {kZero3, kZero2, kDataParallel}) {
      SCOPED_TRACE(ranks);
      RunRanks(ranks, [&](World& world) {
        Scalars model;
        FullyShard(model, world.mesh(), Sums({.stage = stage}));
        Initialize(model, world.device(), 1);
        PoisonFreeMemory(world.device());
        Tape tape;
        {
          const Recording on(tape);
          const double r = world.rank();
          const Variable x = TensorOf<double>(world.device(), {1, 2, 3, r}, {2, 2});
          tape.Backward(Sum(model(x)));
        }
        double factor = 0.0, second = 0.0;
        for (int r = 0; r < ranks; ++r) {
          factor += 2.0 * (6 + r);
          second += 1.5 * (2 + r) - 1.0;
        }
        ExpectClose(GradientsOf(model, &world.group()),
                    {{"factor", {factor}},
                     {"shift", {8.0 * ranks}},
                     {"row", {(1.5 * 4 - 1.0) * ranks, second}}});
        AdamW optimizer(model.parameters());
        optimizer.Step({.learning_rate = 0.25});
        const Whole after = ValuesOf(model, &world.group());
        // Adam's first step is the rate, against the sign of the gradient.
        EXPECT_NEAR(after.at("factor")[0], 1.25, 1e-6);
        EXPECT_NEAR(after.at("shift")[0], -0.75, 1e-6);
        EXPECT_NEAR(after.at("row")[1], 1.75, 1e-6);
      });
    }
  }
}

// Units of one model on two meshes: a block in two copies, the rest over all ranks.
TEST(FsdpInit, UnitsOfOneModelMayLieOnTwoMeshes) {
  const std::vector<int> order = {0, 1};
  const Whole want = PlainGradients(
      4, [&](ShardModel& m, const Device& d, int r) { return Energy(m(InputOf(d, r), order)); });
  RunRanks(4, [&](World& world) {
    ShardModel model(2);
    FullyShard(model.block(0), world.mesh(), Sums());
    FullyShard(model.block(1), world.MakeMesh(2), Sums());
    FullyShard(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    PoisonFreeMemory(world.device());
    Tape tape;
    {
      const Recording on(tape);
      tape.Backward(Energy(model(InputOf(world.device(), world.rank()), order)));
      tape.Reset();
    }
    Whole got = GradientsOf(model, &world.group());
    for (const auto& [name, values] : want) {
      if (name.starts_with("block2")) continue;
      ASSERT_TRUE(got.contains(name)) << name;
    }
    ExpectClose(got, want);
  });
}

// What is ignored stays the caller's: whole on every rank, its gradient this rank's own.
TEST(FsdpInit, IgnoredParametersStayWholeAndUnreduced) {
  for (int ranks : {1, 2, 3}) {
    RunRecorded(ranks, [&](World& world, CollectiveLog& log) {
      const auto backward = [&](ShardModel& model) {
        Tape tape;
        const Recording on(tape);
        tape.Backward(Energy(model(InputOf(world.device(), world.rank()), {0})));
      };
      ShardModel own(1);
      Initialize(own, world.device(), 1);
      backward(own);
      ShardModel model(1);
      const Parameter& up = model.block(0).up.weight();
      FullyShard(model.block(0), world.mesh(), Sums({.ignored = {up}}));
      FullyShard(model, world.mesh(), Sums({.ignored = {up}}));
      Initialize(model, world.device(), 1);
      backward(model);
      EXPECT_TRUE(IsIgnored(model, up));
      EXPECT_FALSE(IsIgnored(model, model.head.weight()));
      EXPECT_EQ(UnitOf(up), nullptr);
      EXPECT_EQ(UnitOf(model.block(0))->parameters(), 2);
      EXPECT_EQ(up.local().numel(), 35);
      EXPECT_EQ(up.local_grad().ToHost<double>(),
                own.block(0).up.weight().local_grad().ToHost<double>());
      const Whole sum = PlainGradients(ranks, [](ShardModel& m, const Device& d, int r) {
        return Energy(m(InputOf(d, r), {0}));
      });
      Whole got = GradientsOf(model, &world.group());
      got.erase("block0.up.weight");
      for (const auto& [name, values] : got) ExpectClose({{name, values}}, {{name, sum.at(name)}});
      if (ranks == 1) return;
      // 5 + 35 elements of the block and 15 of the head are sent, the ignored 35 are not.
      const auto chunk = [&](int64_t elems) { return 8 * ((elems + ranks - 1) / ranks); };
      EXPECT_EQ(log.bytes(CollectiveOp::kReduceScatter), chunk(40) + chunk(15));
    });
  }
}

}  // namespace
}  // namespace sherd::testing
