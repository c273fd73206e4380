// Dtypes of a unit's calls: what the body sees, what travels, and what one rank's overflow does.

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/shard/loss_scaler.h"
#include "tests/shard/steps.h"

namespace sherd::testing {
namespace {

constexpr int64_t kC = 5;
constexpr std::optional<DType> kOwn = std::nullopt;
using DTypes = std::vector<DType>;

Variable InputF32(const Device& device, int rank, uint64_t step = 0) {
  return NormalTensor(device, DType::kF32, {3, kC}, 50 + 100 * step + static_cast<uint64_t>(rank));
}

Variable EnergyF64(const Variable& y) { return Energy(Cast(y, DType::kF64)); }

// A norm and a linear layer over f32 parameters, and a table that is no parameter. Notes in which
// dtypes its body sees the input, the weight and the table.
class Layer : public Module {
 public:
  explicit Layer(const Device& device = Device::Cpu())
      : norm(kC), linear(kC, kC, Initializer::Normal(0.4)) {
    table = NormalTensor(device, DType::kF32, {3, kC}, 9);
    RegisterModule("norm", norm);
    RegisterModule("linear", linear);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Layer& self, const Variable& x) {
          self.inputs.push_back(x.dtype());
          self.weights.push_back(self.linear.weight().variable().dtype());
          self.tables.push_back(self.table.dtype());
          const Variable y = self.norm(x);
          EXPECT_EQ(y.dtype(), x.dtype()) << "of the norm";
          return Add(x, self.linear(y));
        },
        x);
  }
  RmsNormLayer norm;
  LinearLayer linear;
  Tensor table;
  DTypes inputs, weights, tables;
};

class Chain : public Module {
 public:
  explicit Chain(int count = 3) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(std::make_unique<Layer>());
      RegisterModule(absl::StrCat("layer", i), *layers.back());
    }
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](Chain& self, const Variable& x) {
          Variable y = x;
          for (auto& layer : self.layers) {
            if (self.cast_by_hand) {
              y = Cast(y, layer->linear.weight().variable().dtype());
            }
            y = (*layer)(y);
          }
          return y;
        },
        x);
  }
  Layer& layer(int i) { return *layers[static_cast<size_t>(i)]; }
  // Where each layer's input was cast to, were the caller asked.
  DTypes inputs() const {
    DTypes all;
    for (const auto& layer : layers) all.push_back(layer->inputs.back());
    return all;
  }
  bool cast_by_hand = false;
  std::vector<std::unique_ptr<Layer>> layers;
};

// The one dtype of all collectives of a kind.
DType WireOf(const CollectiveLog& log, CollectiveOp op) {
  std::optional<DType> dtype;
  for (const CollectiveRecord& record : log.records()) {
    if (record.op != op) continue;
    EXPECT_EQ(dtype.value_or(record.dtype), record.dtype);
    dtype = record.dtype;
  }
  EXPECT_TRUE(dtype.has_value());
  return dtype.value_or(DType::kI64);
}

struct Policy {
  std::optional<DType> parameters;
  std::optional<DType> reduce;
};

// 30 parameters on each of two ranks: 15 elements of the shard travel in each gather, of the
// reductions as many to each owner.
TEST(UnitPrecision, BodySeesTheComputeDTypeAndBytesFollowTheWire) {
  for (const Policy& policy :
       {Policy{kOwn, kOwn}, Policy{DType::kBF16, kOwn}, Policy{DType::kBF16, DType::kBF16},
        Policy{DType::kF16, kOwn}, Policy{kOwn, DType::kBF16}}) {
    for (bool reshard : {true, false}) {
      const DType compute = policy.parameters.value_or(DType::kF32);
      const DType wire = policy.reduce.value_or(DType::kF32);
      SCOPED_TRACE(absl::StrCat(std::string(NameOf(compute)), " ", std::string(NameOf(wire))));
      RunRecorded(2, [&](World& world, CollectiveLog& log) {
        Layer layer(world.device());
        FullyShard(layer, world.mesh(),
                   Sums({.reshard_after_forward = reshard,
                         .precision = {.parameters = policy.parameters, .reduce = policy.reduce}}));
        Initialize(layer, world.device(), 1);
        Tape tape;
        const Recording on(tape);
        const Variable y = layer(InputF32(world.device(), world.rank()));
        EXPECT_EQ(y.dtype(), compute);
        tape.Backward(EnergyF64(y));
        EXPECT_EQ(layer.inputs, DTypes{compute});
        EXPECT_EQ(layer.weights, DTypes{compute});
        EXPECT_EQ(layer.tables, DTypes{DType::kF32}) << "tables are never cast";
        for (const Parameter& p : layer.parameters()) {
          EXPECT_EQ(p.dtype(), DType::kF32);
          EXPECT_EQ(p.local().dtype(), DType::kF32);
          EXPECT_EQ(p.local_grad().dtype(), DType::kF32);
        }
        EXPECT_EQ(log.bytes(CollectiveOp::kAllGather), (reshard ? 2 : 1) * 15 * SizeOf(compute));
        EXPECT_EQ(log.bytes(CollectiveOp::kReduceScatter), 15 * SizeOf(wire));
        EXPECT_EQ(WireOf(log, CollectiveOp::kReduceScatter), wire);
      });
    }
  }
}

// A layer in f16 between two in f32; who casts decides what is seen.
TEST(UnitPrecision, EachUnitHasItsOwnPolicy) {
  struct Case {
    const char* name;
    MixedPrecision middle, last;
    bool by_hand;
    DTypes want;
  };
  const DType f32 = DType::kF32, f16 = DType::kF16;
  for (const Case& c :
       {Case{"the next unit casts",
             {.parameters = f16},
             {.parameters = f32},
             false,
             {f32, f16, f32}},
        Case{"its output is f32", {.parameters = f16, .output = f32}, {}, false, {f32, f16, f32}},
        Case{"the caller casts",
             {.parameters = f16, .cast_inputs = false},
             {},
             true,
             {f32, f16, f32}},
        Case{"all in f16", {.parameters = f16}, {.parameters = f16}, false, {f32, f16, f16}}}) {
    SCOPED_TRACE(c.name);
    RunRanks(2, [&](World& world) {
      Chain model;
      FullyShard(model.layer(0), world.mesh(), Sums());
      FullyShard(model.layer(1), world.mesh(), Sums({.precision = c.middle}));
      FullyShard(model.layer(2), world.mesh(), Sums({.precision = c.last}));
      FullyShard(model, world.mesh(), Sums());
      Initialize(model, world.device(), 1);
      model.cast_by_hand = c.by_hand;
      Tape tape;
      const Recording on(tape);
      tape.Backward(EnergyF64(model(InputF32(world.device(), world.rank()))));
      EXPECT_EQ(model.inputs(), c.want);
      EXPECT_EQ(model.layer(0).weights, DTypes{f32});
      EXPECT_EQ(model.layer(1).weights, DTypes{f16});
      for (const Parameter& p : model.parameters()) {
        const Tensor grad = p.local_grad();
        EXPECT_EQ(grad.dtype(), f32);
        for (double value : DoublesOf(grad)) EXPECT_TRUE(std::isfinite(value)) << p.name();
      }
    });
  }
}

TEST(UnitPrecision, InputsThatNobodyCastAreAnError) {
  RunRanks(1, [](World& world) {
    Layer layer(world.device());
    FullyShard(layer, world.mesh(),
               {.precision = {.parameters = DType::kBF16, .cast_inputs = false}});
    Initialize(layer, world.device(), 1);
    ExpectErrorHas(ErrorOf([&] { layer(InputF32(world.device(), 0)); }),
                   {"f32", "bf16", "(in norm)"});
    EXPECT_EQ(layer.inputs, DTypes{DType::kF32});
  });
}

struct Inner {
  Variable hidden;
  std::optional<Variable> mask;
};
void VisitVariables(Inner& inner, const VariableVisitor& visit) {
  visit(inner.hidden);
  VisitVariables(inner.mask, visit);
}
struct Features {
  Variable ids;
  std::vector<Inner> inner;
  double factor = 1.0;
};
void VisitVariables(Features& features, const VariableVisitor& visit) {
  visit(features.ids);
  VisitVariables(features.inner, visit);
}

// Adds up what it is given, each through its linear layer; answers in a struct.
class Structured : public Module {
 public:
  Structured() : linear(kC, kC, Initializer::Normal(0.4)) { RegisterModule("linear", linear); }
  Features operator()(const Features& given) {
    return Call(
        *this,
        [](Structured& self, const Features& given) {
          Features out = given;
          for (Inner& inner : out.inner) {
            self.seen.push_back(inner.hidden.dtype());
            if (inner.mask) self.seen.push_back(inner.mask->dtype());
            inner.hidden = Scale(self.linear(inner.hidden), given.factor);
            if (inner.mask) inner.hidden = Mul(inner.hidden, *inner.mask);
          }
          self.seen.push_back(given.ids.dtype());
          return out;
        },
        given);
  }
  LinearLayer linear;
  DTypes seen;
};

TEST(UnitPrecision, NestedStructsAreCastOnTheirWayInAndOut) {
  const DType f32 = DType::kF32, bf16 = DType::kBF16, i64 = DType::kI64;
  struct Case {
    MixedPrecision precision;
    DTypes seen;
    DType output;
  };
  for (const Case& c : {Case{{}, {f32, f32, f32, i64}, f32},
                        Case{{.parameters = bf16}, {bf16, bf16, bf16, i64}, bf16},
                        Case{{.parameters = bf16, .output = f32}, {bf16, bf16, bf16, i64}, f32}}) {
    RunRanks(2, [&](World& world) {
      Structured model;
      FullyShard(model, world.mesh(), Sums({.precision = c.precision}));
      Initialize(model, world.device(), 1);
      Features given;
      given.ids = Variable(TensorOf<int64_t>(world.device(), {4, 2}, {2}));
      given.inner = {
          {InputF32(world.device(), world.rank()), std::nullopt},
          {InputF32(world.device(), world.rank(), 1), InputF32(world.device(), world.rank(), 2)}};
      given.factor = 0.5;
      Tape tape;
      const Recording on(tape);
      const Features out = model(given);
      EXPECT_EQ(model.seen, c.seen);
      EXPECT_EQ(out.inner[0].hidden.dtype(), c.output);
      EXPECT_EQ(out.inner[1].hidden.dtype(), c.output);
      EXPECT_EQ(out.ids.dtype(), i64);
      EXPECT_EQ(given.inner[0].hidden.dtype(), f32) << "the caller's own";
      tape.Backward(Add(EnergyF64(out.inner[0].hidden), EnergyF64(out.inner[1].hidden)));
      EXPECT_EQ(model.linear.weight().local_grad().dtype(), f32);
    });
  }
}

TEST(UnitPrecision, ARecomputeSeesTheSameDTypes) {
  for (bool inside : {true, false}) {
    for (bool early_stop : {true, false}) {
      for (const MixedPrecision& precision :
           {kBf16, MixedPrecision{.parameters = DType::kBF16, .output = DType::kF32}}) {
        RunRanks(2, [&](World& world) {
          std::vector<double> grads[2];
          for (bool checkpoint : {false, true}) {
            Layer layer(world.device());
            const CheckpointOptions options{.early_stop = early_stop};
            if (checkpoint && inside) Checkpoint(layer, options);
            FullyShard(layer, world.mesh(), Sums({.precision = precision}));
            if (checkpoint && !inside) Checkpoint(layer, options);
            Initialize(layer, world.device(), 1);
            Tape tape;
            const Recording on(tape);
            tape.Backward(EnergyF64(layer(InputF32(world.device(), world.rank()))));
            EXPECT_EQ(layer.inputs, DTypes(checkpoint ? 2 : 1, DType::kBF16));
            EXPECT_EQ(layer.weights, DTypes(checkpoint ? 2 : 1, DType::kBF16));
            grads[checkpoint ? 1 : 0] = DoublesOf(layer.linear.weight().local_grad());
          }
          EXPECT_EQ(grads[0], grads[1]) << "bits";
        });
      }
    }
  }
}

// What an optimizer remembers, for comparisons.
class StateOf final : public OptimizerStateVisitor {
 public:
  explicit StateOf(Optimizer& optimizer) { optimizer.VisitState(*this); }
  void OnTensor(const Parameter&, std::string_view, const Tensor& local) override {
    tensors.push_back(DoublesOf(local));
  }
  void OnCount(const Parameter&, std::string_view, int64_t& count) override {
    counts.push_back(count);
  }
  std::vector<std::vector<double>> tensors;
  std::vector<int64_t> counts;
};

TEST(UnitPrecision, AnOverflowInF16OnOneRankIsTheVerdictOfAll) {
  for (int ranks : {1, 2, 4}) {
    for (int inside : {0, 2}) {
      if (inside == 2 && ranks != 4) continue;
      SCOPED_TRACE(absl::StrCat(ranks, " ranks, ", inside, " inside"));
      RunRanks(ranks, [&](World& world) {
        Chain model(2);
        const FullyShardOptions options{.precision = {.parameters = DType::kF16}};
        const Mesh mesh = inside > 0 ? world.MakeMesh(inside) : world.mesh();
        for (auto& layer : model.layers) FullyShard(*layer, mesh, options);
        FullyShard(model, mesh, options);
        Initialize(model, world.device(), 1);
        AdamW optimizer(model.parameters());
        LossScaler scaler({.init_scale = 16.0, .growth_interval = 100});
        Accumulation accumulation(model, {.scaler = &scaler});
        Tape tape;
        const auto step = [&](double factor) {
          return RunWindow(accumulation, optimizer, tape, {static_cast<uint64_t>(world.rank())},
                           [&](uint64_t i) {
                             const Variable x = InputF32(world.device(), static_cast<int>(i));
                             return Scale(EnergyF64(model(x)), factor);
                           },
                           {.learning_rate = 0.01, .clip = 1.0});
        };
        EXPECT_FALSE(step(1.0).skipped);
        const Whole before = ValuesOf(model, &world.group());
        const StateOf state(optimizer);
        const bool breaks = world.rank() == world.size() - 1;
        const StepResult result = step(breaks ? 1e6 : 1.0);
        EXPECT_TRUE(result.skipped);
        EXPECT_FALSE(std::isfinite(result.grad_norm));
        EXPECT_EQ(ValuesOf(model, &world.group()), before) << "bits";
        const StateOf after(optimizer);
        EXPECT_EQ(after.tensors, state.tensors) << "bits";
        EXPECT_EQ(after.counts, state.counts);
        EXPECT_EQ(state.counts, std::vector<int64_t>(state.counts.size(), 1));
        EXPECT_EQ(scaler.scale(), 8.0);
        EXPECT_EQ(scaler.state().good_steps, 0);
        EXPECT_FALSE(step(1.0).skipped);
        EXPECT_EQ(scaler.scale(), 8.0);
        EXPECT_NE(ValuesOf(model, &world.group()), before);
        EXPECT_EQ(StateOf(optimizer).counts, std::vector<int64_t>(state.counts.size(), 2));
      });
    }
  }
}

// Scaled f16 and bf16 on several ranks lead where one rank in the same dtypes does.
TEST(UnitPrecision, TrainsAsOneRankDoesThatTakesAllMicroBatches) {
  const auto train = [](World& world, const MixedPrecision& precision, int all) {
    Chain model(2);
    for (auto& layer : model.layers) {
      FullyShard(*layer, world.mesh(), {.precision = precision});
    }
    FullyShard(model, world.mesh());
    Initialize(model, world.device(), 1);
    AdamW optimizer(model.parameters(), {.eps = 1e-3});
    LossScaler scaler({.init_scale = 16.0});
    Accumulation accumulation(model, {.micro_batches = all / world.size(), .scaler = &scaler});
    Tape tape;
    for (uint64_t step = 0; step < 10; ++step) {
      std::vector<uint64_t> inputs;
      for (int rank = 0; rank < all; ++rank) {
        if (world.size() == 1 || rank == world.rank()) {
          inputs.push_back(static_cast<uint64_t>(rank));
        }
      }
      RunWindow(accumulation, optimizer, tape, inputs,
                [&](uint64_t i) {
                  return EnergyF64(model(InputF32(world.device(), static_cast<int>(i), step)));
                },
                {.learning_rate = 0.01});
    }
    return ValuesOf(model, &world.group());
  };
  for (const MixedPrecision& precision : {kBf16, MixedPrecision{.parameters = DType::kF16}}) {
    for (int ranks : {2, 3}) {
      Whole want;
      RunRanks(1, [&](World& world) { want = train(world, precision, ranks); });
      RunRanks(ranks,
               [&](World& world) { ExpectClose(train(world, precision, ranks), want, 1e-4); });
    }
  }
}

}  // namespace
}  // namespace sherd::testing
