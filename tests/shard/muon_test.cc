// Muon on shards equals the formula on whole matrices, in f64 loops written here, for any number of
// ranks.

#include "sherd/shard/muon.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sherd/autograd/call.h"
#include "sherd/runtime/comm/recording_group.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/shard/newton_schulz.h"
#include "tests/shard/model.h"

namespace sherd::testing {
namespace {

using Matrix = std::vector<double>;  // row-major

Matrix Times(const Matrix& a, const Matrix& b, int64_t n, int64_t k, int64_t m) {
  Matrix c(static_cast<size_t>(n * m), 0.0);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) {
      for (int64_t l = 0; l < k; ++l) {
        c[static_cast<size_t>(i * m + j)] +=
            a[static_cast<size_t>(i * k + l)] * b[static_cast<size_t>(l * m + j)];
      }
    }
  }
  return c;
}

Matrix Transposed(const Matrix& a, int64_t rows, int64_t cols) {
  Matrix t(a.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      t[static_cast<size_t>(j * rows + i)] = a[static_cast<size_t>(i * cols + j)];
    }
  }
  return t;
}

// As published: a tall matrix is transposed first.
Matrix PlainOrthogonalized(Matrix x, int64_t rows, int64_t cols, int iterations) {
  const bool tall = rows > cols;
  if (tall) x = Transposed(x, rows, cols);
  if (tall) std::swap(rows, cols);
  double norm = 0.0;
  for (double value : x) norm += value * value;
  for (double& value : x) value /= std::sqrt(norm) + 1e-7;
  for (int i = 0; i < iterations; ++i) {
    const Matrix a = Times(x, Transposed(x, rows, cols), rows, cols, rows);
    Matrix b = Times(a, a, rows, rows, rows);
    for (size_t e = 0; e < b.size(); ++e) b[e] = -4.7750 * a[e] + 2.0315 * b[e];
    const Matrix bx = Times(b, x, rows, rows, cols);
    for (size_t e = 0; e < x.size(); ++e) x[e] = 3.4445 * x[e] + bx[e];
  }
  return tall ? Transposed(x, rows, cols) : x;
}

// Two matrices that a border cuts, small ones, and others that AdamW takes.
const std::vector<std::pair<std::string, Shape>> kLeaves = {
    {"wide", {5, 12}}, {"gain", {12}},     {"tiny", {1, 3}},   {"tall", {9, 4}},
    {"embed", {6, 4}}, {"square", {7, 7}}, {"cube", {2, 2, 2}}};

class Leaves : public Module {
 public:
  explicit Leaves(DType dtype, size_t first, size_t last) {
    for (size_t i = first; i < last; ++i) {
      RegisterParameter(kLeaves[i].first, kLeaves[i].second, Initializer::Normal(1.0), dtype);
    }
  }
};

class Net : public Module {
 public:
  explicit Net(DType dtype) : a(dtype, 0, 4), b(dtype, 4, 7), single(dtype, 5, 6) {
    RegisterModule("a", a);
    RegisterModule("b", b);
    RegisterModule("single", single);
  }
  Leaves a, b, single;
};

// kFirst: only the first part is a unit, the rest is on all ranks. kCopies: two copies of units
// that are cut in different ways.
enum class Units { kNone, kOne, kEach, kFirst, kCopies };

MuonOptions OptionsOf(MuonScale scale) {
  return {.momentum = 0.9,
          .nesterov = scale == MuonScale::kOriginal,
          .weight_decay = 0.3,
          .scale = scale,
          .groups = {{.name = "tall",
                      .matches = NameContains("tall"),
                      .lr_scale = 0.5,
                      .weight_decay = 0.1}},
          .leave_to_adamw = NameContains("embed"),
          .adamw = {.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.2},
          .round_elems = 100};
}

// The formula on whole parameters.
class PlainMuon {
 public:
  PlainMuon(Whole values, MuonOptions options)
      : values_(std::move(values)), options_(std::move(options)) {}
  void Step(const Whole& gradients, const Module& model, double lr, double grad_scale) {
    for (const Parameter& parameter : model.parameters()) {
      const auto found = gradients.find(parameter.name());
      if (found == gradients.end()) continue;
      Matrix g = found->second;
      for (double& value : g) value *= grad_scale;
      const bool matrix =
          parameter.shape().rank() == 2 && parameter.name().find("embed") == std::string::npos;
      matrix ? MatrixStep(parameter, g, lr) : AdamWStep(parameter, g, lr);
    }
  }
  const Whole& values() const { return values_; }

 private:
  void MatrixStep(const Parameter& parameter, const Matrix& g, double lr) {
    const bool tall = parameter.name().find("tall") != std::string::npos;
    const double decay = tall ? 0.1 : options_.weight_decay;
    if (tall) lr *= 0.5;
    Matrix& m = m_[parameter.name()];
    m.resize(g.size());
    Matrix u(g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      m[i] = options_.momentum * m[i] + g[i];
      u[i] = options_.nesterov ? g[i] + options_.momentum * m[i] : m[i];
    }
    const double rows = static_cast<double>(parameter.shape()[0]);
    const double cols = static_cast<double>(parameter.shape()[1]);
    u = PlainOrthogonalized(u, parameter.shape()[0], parameter.shape()[1], 5);
    const double scale = options_.scale == MuonScale::kMatchAdamW
                             ? 0.2 * std::sqrt(std::max(rows, cols))
                             : std::sqrt(std::max(1.0, rows / cols));
    Matrix& p = values_[parameter.name()];
    for (size_t i = 0; i < p.size(); ++i) p[i] = (1 - lr * decay) * p[i] - lr * scale * u[i];
  }
  void AdamWStep(const Parameter& parameter, const Matrix& g, double lr) {
    const AdamWOptions& o = options_.adamw;
    Matrix &m = m_[parameter.name()], &v = v_[parameter.name()], &p = values_[parameter.name()];
    m.resize(g.size());
    v.resize(g.size());
    const double t = ++steps_[parameter.name()];
    const double decay = parameter.shape().rank() >= 2 ? o.weight_decay : 0.0;
    for (size_t i = 0; i < g.size(); ++i) {
      m[i] = o.beta1 * m[i] + (1 - o.beta1) * g[i];
      v[i] = o.beta2 * v[i] + (1 - o.beta2) * g[i] * g[i];
      const double mean = m[i] / (1 - std::pow(o.beta1, t));
      const double root = std::sqrt(v[i] / (1 - std::pow(o.beta2, t)));
      p[i] = (1 - lr * decay) * p[i] - lr * mean / (root + o.eps);
    }
  }

  Whole values_, m_, v_;
  std::map<std::string, double> steps_;
  const MuonOptions options_;
};

void Shard(Net& net, const World& world, Units units) {
  const Mesh mesh = units == Units::kCopies ? world.MakeMesh(world.size() / 2) : world.mesh();
  if (units == Units::kCopies) {
    FullyShard(net.a, mesh, Sums({.stage = kZero3}));
    FullyShard(net.b, mesh, Sums({.stage = kZero1}));
    FullyShard(net.single, mesh, Sums({.stage = kHybridOptimizer}));
  }
  if (units == Units::kEach) {
    for (Leaves* leaves : {&net.a, &net.b, &net.single}) FullyShard(*leaves, mesh, Sums());
  }
  if (units == Units::kOne) FullyShard(net, mesh, Sums());
  if (units == Units::kFirst) FullyShard(net.a, mesh, Sums());
}

// Ranks contribute powers of two that sum to one, so sums of gradients are exact.
double ShareOf(int rank, int ranks) {
  if (ranks == 3) return rank == 0 ? 0.5 : 0.25;
  return 1.0 / ranks;
}

Tensor In(DType dtype, const Tensor& x) {
  const Tensor out = Tensor::Empty(x.device(), dtype, x.shape());
  kernels::Cast(x, out);
  return out;
}

// The same in f32 and f64.
Tensor GradientOf(const Device& device, const Parameter& parameter, int step) {
  const uint64_t seed = 31 * static_cast<uint64_t>(step) + parameter.name().size();
  return NormalTensor(device, DType::kF32, parameter.shape(), seed);
}

// What a rank adds of a parameter's gradient in a step: nobody uses the square ones in step 1, and
// only the last rank "wide" in step 2.
// What is in no unit has its whole gradient on every rank.
double WeightOf(const Parameter& parameter, int step, int rank, int ranks) {
  if (step == 1 && parameter.name().find("square") != std::string::npos) return 0.0;
  if (parameter.state().host == nullptr) return 1.0;
  if (step == 2 && parameter.name() == "a.wide") return rank == ranks - 1 ? 1.0 : 0.0;
  return ShareOf(rank, ranks);
}

// The gradients of the sum of parameters times numbers are these numbers.
void BackwardOf(Module& module, World& world, int step) {
  Tape tape;
  const Recording on(tape);
  Variable loss;
  {
    std::unique_ptr<UnitScope> scope;
    if (UnitOf(module) != nullptr) scope = std::make_unique<UnitScope>(module);
    for (const Parameter& parameter : module.parameters()) {
      const double weight = WeightOf(parameter, step, world.rank(), world.size());
      if (weight == 0.0) continue;
      const Tensor g = In(parameter.dtype(), GradientOf(world.device(), parameter, step));
      kernels::Scale(g, weight, g);
      const Variable term = Sum(Mul(parameter, Variable(g)));
      loss = loss.defined() ? Add(loss, term) : term;
    }
  }
  if (loss.defined()) tape.Backward(loss);
}

Whole ValuesNow(const Module& model, ProcessGroup* group) {
  Whole all;
  for (const Parameter& parameter : model.parameters()) {
    Matrix whole(static_cast<size_t>(parameter.numel()), 0.0);
    const Matrix piece = In(DType::kF64, parameter.local()).ToHost<double>();
    if (Counts(model, parameter)) {
      std::copy(piece.begin(), piece.end(), whole.begin() + parameter.local_offset());
    }
    if (group != nullptr && parameter.state().host != nullptr)
      group->AllReduce(whole.data(), static_cast<int64_t>(whole.size()), DType::kF64);
    all[parameter.name()] = std::move(whole);
  }
  return all;
}

// Four steps; returns what they lead to, on rank 0. With a `tolerance`, each is compared with the
// formula, from its own values on.
Whole Train(int ranks, Units units, DType dtype, MuonScale scale, double tolerance) {
  Whole result;
  RunRanks(ranks, [&](World& world) {
    Net net(dtype);
    Shard(net, world, units);
    Initialize(net, world.device(), 1);
    ProcessGroup* group = units == Units::kNone ? nullptr : &world.group();
    PlainMuon want(ValuesNow(net, group), OptionsOf(scale));
    Muon optimizer(net, OptionsOf(scale));
    for (int step = 0; step < 4; ++step) {
      if (units == Units::kOne) {
        BackwardOf(net, world, step);
      } else {
        for (Leaves* leaves : {&net.a, &net.b, &net.single}) BackwardOf(*leaves, world, step);
      }
      Whole gradients;
      for (const Parameter& parameter : net.parameters()) {
        double used = 0.0;
        for (int r = 0; r < ranks; ++r) used += WeightOf(parameter, step, r, ranks);
        if (used == 0.0) continue;
        gradients[parameter.name()] =
            In(DType::kF64, GradientOf(world.device(), parameter, step)).ToHost<double>();
      }
      optimizer.Step({.learning_rate = 0.05, .grad_scale = 0.5});
      want.Step(gradients, net, 0.05, 0.5);
      ExpectClose(ValuesNow(net, group), want.values(), tolerance);
      for (const Parameter& parameter : net.parameters()) parameter.ClearGrad();
    }
    const Whole values = ValuesNow(net, group);
    if (world.rank() == 0) result = values;
  });
  return result;
}

TEST(OrthogonalizeTest, EqualsThePublishedIteration) {
  for (const Shape& shape : {Shape({4, 9}), Shape({9, 4}), Shape({6, 6}), Shape({1, 5})}) {
    const Tensor x = NormalTensor(Device::Cpu(), DType::kF32, shape, 4);
    const Tensor y = In(DType::kF64, x);
    const Matrix want = PlainOrthogonalized(y.ToHost<double>(), shape[0], shape[1], 5);
    Orthogonalize(x, 5);
    Orthogonalize(y, 5);
    const Matrix single = In(DType::kF64, x).ToHost<double>(), twice = y.ToHost<double>();
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(single[i], want[i], 2e-5) << shape.ToString();
      EXPECT_NEAR(twice[i], want[i], 1e-13) << shape.ToString();
    }
  }
}

TEST(OrthogonalizeTest, KeepsAMatrixOfZeros) {
  const Tensor x = Tensor::Zeros(Device::Cpu(), DType::kF32, {3, 4});
  Orthogonalize(x, 5);
  EXPECT_EQ(x.ToHost<float>(), std::vector<float>(12, 0.0f));
}

TEST(MuonTest, EqualsTheFormulaOnWholeMatrices) {
  Train(1, Units::kNone, DType::kF64, MuonScale::kMatchAdamW, 1e-12);
  for (Units units : {Units::kOne, Units::kEach, Units::kFirst}) {
    for (int ranks : {1, 2, 3, 4}) {
      SCOPED_TRACE(ranks);
      Train(ranks, units, DType::kF64, MuonScale::kMatchAdamW, 1e-12);
    }
  }
}

TEST(MuonTest, EqualsTheFormulaWhereSeveralRanksHoldTheSame) {
  for (int ranks : {2, 4}) {
    Train(ranks, Units::kCopies, DType::kF64, MuonScale::kMatchAdamW, 1e-12);
  }
}

TEST(MuonTest, EqualsTheFormulaAsFirstPublished) {
  for (int ranks : {1, 3}) {
    Train(ranks, Units::kEach, DType::kF64, MuonScale::kOriginal, 1e-12);
  }
}

TEST(MuonTest, DoesNotDependOnTheNumberOfRanks) {
  const Whole want = Train(1, Units::kEach, DType::kF32, MuonScale::kMatchAdamW, 1e-4);
  for (Units units : {Units::kOne, Units::kEach}) {
    for (int ranks : {2, 3, 4}) {
      SCOPED_TRACE(ranks);
      ExpectClose(Train(ranks, units, DType::kF32, MuonScale::kMatchAdamW, 1e-4), want, 1e-6);
    }
  }
}

// The bytes and calls of one warm step besides the agreement on what is used.
std::pair<int64_t, int64_t> GathersOf(int ranks, const std::vector<Shape>& shapes) {
  class Plain : public Module {
   public:
    explicit Plain(const std::vector<Shape>& shapes) {
      for (size_t i = 0; i < shapes.size(); ++i) {
        RegisterParameter("w" + std::to_string(i), shapes[i], Initializer::Normal(1.0));
      }
    }
  };
  const auto log = std::make_shared<CollectiveLog>();
  RankOptions options;
  options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    return MakeRecordingGroup(std::move(group), log);
  };
  RunRanks(
      ranks,
      [&](World& world) {
        Plain net(shapes);
        FullyShard(net, world.mesh(), Sums());
        Initialize(net, world.device(), 1);
        Muon optimizer(net);
        for (int step = 0; step < 2; ++step) {
          BackwardOf(net, world, 0);
          world.group().Barrier();
          if (world.rank() == 0) log->Clear();
          world.group().Barrier();
          optimizer.Step({.learning_rate = 0.1});
          world.group().Barrier();
        }
      },
      options);
  return {log->count(CollectiveOp::kAllGather), log->bytes(CollectiveOp::kAllGather)};
}

TEST(MuonTest, SendsOnlyWhatABorderCutsFromItsOwner) {
  // Each rank holds whole matrices: nothing to send.
  EXPECT_EQ(GathersOf(2, {{4, 4}, {4, 4}}), (std::pair<int64_t, int64_t>(0, 0)));
  EXPECT_EQ(GathersOf(2, {{2, 4}, {2, 4}, {4, 4}}), (std::pair<int64_t, int64_t>(0, 0)));
  // 15 and 12 elements in chunks of 14: the last element of the first goes to rank 0 and its update
  // back, 4 bytes from each of two ranks.
  EXPECT_EQ(GathersOf(2, {{3, 5}, {3, 4}}), (std::pair<int64_t, int64_t>(4, 4 * 4)));
  // One matrix over three ranks: as a gather of it, both ways; back go the pieces of both others.
  EXPECT_EQ(GathersOf(3, {{3, 4}}), (std::pair<int64_t, int64_t>(6, 3 * 4 * (4 + 8))));
}

TEST(MuonTest, RefusesWhatItCannotUpdate) {
  const auto error = [](const MuonOptions& options) {
    Net net(DType::kF32);
    return ErrorOf([&] { Muon optimizer(net, options); });
  };
  EXPECT_TRUE(Contains(error({.momentum = 1.0}), "less than 1, got 1"));
  EXPECT_TRUE(Contains(error({.iterations = 0}), "iterations are at least 1, got 0"));
  EXPECT_TRUE(Contains(error({.round_elems = 0}), "round_elems is at least 1"));
  EXPECT_TRUE(Contains(error({.leave_to_adamw = [](const Parameter&) { return true; }}),
                       "no trainable parameter of two dimensions"));
  // A group of matrices cannot name what AdamW has, nor the other way round.
  EXPECT_TRUE(Contains(error({.groups = {{.name = "e", .matches = NameContains("embed")}},
                              .leave_to_adamw = NameContains("embed")}),
                       "group 'e' has no parameter"));
  EXPECT_TRUE(
      Contains(error({.adamw = {.groups = {{.name = "w", .matches = NameContains("wide")}}}}),
               "[AdamW] group 'w' has no parameter"));
}

// What VisitState shows, by name, and how many elements it has.
class Names : public OptimizerStateVisitor {
 public:
  void OnTensor(const Parameter& p, std::string_view name, const Tensor& local) override {
    EXPECT_EQ(local.numel(), p.local().numel());
    names.push_back(p.name() + "/" + std::string(name));
  }
  void OnCount(const Parameter& p, std::string_view, int64_t& count) override {
    counts[p.name()] = count;
  }
  std::vector<std::string> names;
  std::map<std::string, int64_t> counts;
};

TEST(MuonTest, RefusesAGradientThatOnlySomeRanksHave) {
  RunRanks(2, [](World& world) {
    Net net(DType::kF32);
    FullyShard(net.a, world.mesh(), Sums());
    Initialize(net, world.device(), 1);
    Muon optimizer(net);
    if (world.rank() == 0) BackwardOf(net.b, world, 0);
    EXPECT_TRUE(Contains(ErrorOf([&] { optimizer.Step({.learning_rate = 0.1}); }),
                         "parameter 'b.embed' is in no unit and has a gradient on 1 of 2 ranks"));
  });
}

TEST(MuonTest, StateTakesMemoryForItsOwnParametersOnly) {
  RunRanks(1, [](World& world) {
    Net net(DType::kF32);
    FullyShard(net, world.mesh(), Sums());
    Initialize(net, world.device(), 1);
    Muon optimizer(net, OptionsOf(MuonScale::kMatchAdamW));
    BackwardOf(net, world, 0);
    optimizer.Step({.learning_rate = 0.1});
    const int64_t matrices = 60 + 3 + 36 + 49 + 49, rest = 12 + 24 + 8;
    const MemoryStats stats = world.device().allocator().stats();
    // Three blocks, each rounded up to 64 bytes.
    EXPECT_LE(stats[MemoryCategory::kOptimizer].current_bytes, 4 * (matrices + 2 * rest) + 3 * 63);
  });
}

TEST(MuonTest, KeepsOneMomentumForMatricesAndTwoMomentsForTheRest) {
  RunRanks(2, [](World& world) {
    Net net(DType::kF32);
    FullyShard(net, world.mesh(), Sums());
    Initialize(net, world.device(), 1);
    Muon optimizer(net, OptionsOf(MuonScale::kMatchAdamW));
    BackwardOf(net, world, 1);
    optimizer.Step({.learning_rate = 0.1});
    Names seen;
    optimizer.VisitState(seen);
    EXPECT_EQ(seen.names, (std::vector<std::string>{
                              "a.wide/momentum", "a.tiny/momentum", "a.tall/momentum",
                              "b.square/momentum", "single.square/momentum", "a.gain/m", "a.gain/v",
                              "b.embed/m", "b.embed/v", "b.cube/m", "b.cube/v"}));
    EXPECT_EQ(seen.counts["a.wide"], 1);
    EXPECT_EQ(seen.counts["b.square"], 0) << "nobody used it";
    EXPECT_EQ(seen.counts["b.embed"], 1);
  });
}

}  // namespace
}  // namespace sherd::testing
