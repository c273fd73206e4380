#include "tests/compose/parity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/window.h"
#include "tests/support/grid_model.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

constexpr int kSteps = 3;

bool IsMixed(const GridCase& c) { return !(c.precision == MixedPrecision()); }

constexpr double kLearningRate = 0.05;

// The options that all checkpoints of one model share.
CheckpointOptions OptionsOf(GridPolicy policy) {
  switch (policy) {
    case GridPolicy::kFull:
      return {.early_stop = false};
    case GridPolicy::kEarlyStop:
      return {};
    case GridPolicy::kMatmuls:
      return {.policy = KeepMatmuls()};
    case GridPolicy::kEveryOther:
      return {.policy = [](const OpInfo& op) { return op.ordinal % 2 == 0; }};
    case GridPolicy::kEverything:
      return {.policy = KeepAll()};
    case GridPolicy::kBudget:
      return {.budget = std::make_shared<MemoryBudget>(20000)};
    case GridPolicy::kOffload:
      return {.policy = KeepMatmuls(), .offload = std::make_shared<Offload>()};
  }
  return {};
}

// Gradients by parameter name, whole and in f64; no entry: no gradient.
using Gradients = std::map<std::string, std::vector<double>>;

std::vector<double> AsDoubles(const Tensor& tensor) {
  if (tensor.dtype() == DType::kF64) return tensor.ToHost<double>();
  const std::vector<float> values = tensor.ToHost<float>();
  return {values.begin(), values.end()};
}

// Plain gradient descent that keeps what it was given. Its update is the oracle's own arithmetic.
class KeepingDescent final : public Optimizer {
 public:
  KeepingDescent(const Module& model, ProcessGroup* group)
      : parameters_(model.parameters()), group_(group) {
    // Of ranks that hold the same pieces, one counts them.
    for (const Unit* unit : UnitsOf(model)) counts_ = counts_ && unit->counts_in_norm();
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void Step(const StepOptions& options) override {
    kept_.clear();
    for (const Parameter& parameter : parameters_) {
      const Tensor grad = parameter.local_grad();
      if (!grad.defined()) continue;
      std::vector<double> whole(static_cast<size_t>(parameter.numel()), 0.0);
      const std::vector<double> piece = AsDoubles(grad);
      if (counts_) {
        std::copy(piece.begin(), piece.end(), whole.begin() + parameter.local_offset());
      }
      if (group_ != nullptr) {
        group_->AllReduce(whole.data(), static_cast<int64_t>(whole.size()), DType::kF64);
      }
      kept_[parameter.name()] = std::move(whole);
      if (grad.numel() > 0) {
        kernels::Scale(grad, -options.learning_rate, parameter.MutableLocal(),
                       kernels::Write::kAdd);
      } else {
        parameter.MutableLocal();
      }
    }
  }
  const Gradients& kept() const { return kept_; }

 private:
  std::vector<Parameter> parameters_;
  ProcessGroup* group_;
  bool counts_ = true;
  Gradients kept_;
};

struct RunResult {
  std::vector<Gradients> gradients;
  std::vector<double> losses;
  int64_t plain_gathers = 0;
  int64_t plain_reductions = 0;
};

void Wrap(GridModel& model, const Mesh& mesh, const GridCase& c) {
  if (!c.sharded) return;
  const FullyShardOptions options{.reshard_after_forward = c.reshard,
                                  .park = c.park,
                                  .reshard_after_backward = !c.keep,
                                  .prefetch = c.prefetch,
                                  .stage = c.stage,
                                  .precision = c.precision,
                                  .reduce_once = c.reduce_once,
                                  .offload = c.offload};
  const CheckpointOptions checkpoint = OptionsOf(c.policy);
  for (GridBlock* block : model.blocks()) {
    if (c.checkpoint == CheckpointOrder::kInside) Checkpoint(*block, checkpoint);
    FullyShard(*block, mesh, options);
    if (c.checkpoint == CheckpointOrder::kOutside) Checkpoint(*block, checkpoint);
  }
  FullyShardOptions root = options;
  root.reshard_after_forward = std::nullopt;
  root.park = 0;
  FullyShard(model, mesh, root);
}

// Starts every step from the given values, so that rounding of one step does not enter the next.
void Load(const GridModel& model, const std::map<std::string, std::vector<double>>& values) {
  for (const Parameter& parameter : model.parameters()) {
    const std::vector<double>& whole = values.at(parameter.name());
    const Tensor local = parameter.MutableLocal();
    if (local.numel() == 0) continue;
    const double* const piece = whole.data() + parameter.local_offset();
    const std::vector<float> narrow(piece, piece + local.numel());
    const void* const values = local.dtype() == DType::kF64
                                   ? static_cast<const void*>(piece)
                                   : static_cast<const void*>(narrow.data());
    local.device().CopyFromHost(local.raw(), values, local.bytes());
  }
}

using Snapshot = std::map<std::string, std::vector<double>>;

Snapshot Save(const GridModel& model) {
  Snapshot values;
  for (const Parameter& parameter : model.parameters())
    values[parameter.name()] = AsDoubles(parameter.local());
  return values;
}

// The micro-batches of one rank, or on one rank those of all ranks of the case in turn.
std::vector<GridBatch> BatchesOf(const World& world, int step, const GridCase& c) {
  const bool all = world.size() < c.ranks;
  std::vector<GridBatch> batches;
  for (int rank = 0; rank < c.ranks; ++rank) {
    if (!all && rank != world.rank()) continue;
    for (GridBatch& batch :
         GridBatches(world.device(), step, c.ranks, rank, c.micro_batches, c.calls)) {
      batches.push_back(std::move(batch));
    }
  }
  return batches;
}

RunResult Train(World& world, const GridCase& c, const std::vector<Snapshot>* starts,
                std::vector<Snapshot>* save) {
  GridModel model(world.device(), c.dtype);
  const int inside = c.inside == 0 ? world.size() : std::min(c.inside, world.size());
  Wrap(model, inside == world.size() ? world.mesh() : world.MakeMesh(inside), c);
  Initialize(model, world.device(), 3);
  const CausalLmLoss loss;
  Accumulation accumulation(
      model, {.micro_batches = c.micro_batches * c.ranks / world.size(), .sync = c.sync});
  KeepingDescent optimizer(model, world.size() > 1 ? &world.group() : nullptr);
  Tape tape;
  RunResult result;
  for (int step = 0; step < kSteps; ++step) {
    if (save != nullptr) save->push_back(Save(model));
    if (starts != nullptr) Load(model, (*starts)[static_cast<size_t>(step)]);
    std::vector<GridBatch> batches = BatchesOf(world, step, c);
    size_t next = 0;
    auto loader = [&]() -> std::optional<GridBatch> {
      return next < batches.size() ? std::optional(batches[next++]) : std::nullopt;
    };
    auto count = [&](const GridBatch& batch) {
      int64_t items = 0;
      for (const GridCall& call : batch.calls) items += loss.Count(call.labels);
      return items;
    };
    auto window = accumulation.Next(loader, count);
    for (const GridBatch& batch : *window) {
      Recording on(tape, {.seed = 5, .step = step});
      LossSum total;
      for (const GridCall& call : batch.calls) {
        on.SetSamples(call.samples);
        const LossSum part = loss(model(call.tokens, step % 2 == 0), call.labels);
        total = {
            total.items == 0 && !total.value.defined() ? part.value : Add(total.value, part.value),
            total.items + part.items};
      }
      window->Backward(total);
    }
    const StepResult r = window->Finish(optimizer, kLearningRate);
    result.losses.push_back(r.loss);
    result.gradients.push_back(optimizer.kept());
    if (c.sharded) {
      // What one rank inside cuts is whole there, and refreshed once a step.
      const bool cut = c.stage.shard.parameters == Placement::kShard &&
                       (world.size() == 1 || inside > 1 ||
                        c.stage.replicate.optimizer == Placement::kReplicate ||
                        c.stage.replicate.parameters == Placement::kShard);
      for (const Unit* unit : UnitsOf(model)) EXPECT_EQ(unit->unsharded(), !cut) << unit->name();
    }
  }
  if (c.sharded) {
    result.plain_gathers = UnitOf(model.plain())->gathers();
    result.plain_reductions = UnitOf(model.plain())->reductions();
  }
  return result;
}

double RelativeError(const std::vector<double>& got, const std::vector<double>& want) {
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return norm == 0.0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

struct Reference {
  RunResult run;
  std::vector<Snapshot> starts;
};

// The unsharded model on one rank, the whole step in one micro-batch.
const Reference& ReferenceFor(DType dtype, int calls) {
  static std::map<std::pair<DType, int>, Reference> references;
  auto [it, inserted] = references.try_emplace({dtype, calls});
  if (inserted) {
    GridCase c{.dtype = dtype, .calls = calls, .sharded = false};
    RunRanks(1,
             [&](World& world) { it->second.run = Train(world, c, nullptr, &it->second.starts); });
  }
  return it->second;
}

// The same run on one rank without checkpoints. How calls are summed up (once, at each
// micro-batch) stays, since it orders the additions.
const RunResult& PlainFor(const GridCase& of) {
  static std::map<std::string, RunResult> runs;
  GridCase c = of;
  c.checkpoint = CheckpointOrder::kOff;
  c.policy = GridPolicy::kFull;
  c.prefetch = 0;
  auto [it, inserted] = runs.try_emplace(NameOf(c));
  if (inserted) {
    const Reference& reference = ReferenceFor(c.dtype, c.calls);
    RunRanks(1, [&](World& world) {
      it->second = Train(world, c, c.dtype == DType::kF64 ? nullptr : &reference.starts, nullptr);
    });
  }
  return it->second;
}

// One rank in the case's precision that takes the micro-batches of all its ranks in turn.
const RunResult& MixedReferenceFor(const GridCase& c, const RankOptions& options) {
  static std::map<std::string, RunResult> references;
  GridCase alone{.dtype = c.dtype,
                 .ranks = c.ranks,
                 .micro_batches = c.micro_batches,
                 .calls = c.calls,
                 .precision = c.precision};
  // What is rounded on the wire depends on who sends it; the reference sends nothing.
  alone.precision.reduce = std::nullopt;
  auto [it, inserted] = references.try_emplace(NameOf(alone));
  if (inserted) {
    const Reference& start = ReferenceFor(c.dtype, c.calls);
    RunRanks(
        1, [&](World& world) { it->second = Train(world, alone, &start.starts, nullptr); },
        options);
  }
  return it->second;
}

// Compares one rank's run with the reference and returns the worst error.
double Compare(const GridCase& c, const RunResult& run, const RunResult& reference) {
  const bool wire = c.precision.reduce.has_value();
  const double tolerance = wire ? 8e-3 : c.dtype == DType::kF64 && !IsMixed(c) ? 1e-12 : 1e-5;
  double worst = 0.0;
  for (size_t step = 0; step < kSteps; ++step) {
    EXPECT_LE(std::abs(run.losses[step] / reference.losses[step] - 1.0), tolerance)
        << "step " << step;
    const Gradients& got = run.gradients[step];
    EXPECT_EQ(got.size(), reference.gradients[step].size())
        << "parameters with a gradient, step " << step;
    for (const auto& [name, gradient] : reference.gradients[step]) {
      const auto it = got.find(name);
      if (it == got.end()) {
        ADD_FAILURE() << name << " has no gradient in step " << step;
        continue;
      }
      const double error = RelativeError(it->second, gradient);
      worst = std::max(worst, error);
      EXPECT_LE(error, tolerance) << name << ", step " << step;
    }
  }
  return worst;
}

}  // namespace

std::string NameOf(const GridCase& c) {
  const char* orders[] = {"off", "inside", "outside"};
  const char* policies[] = {"full",       "early stop", "matmuls", "every other",
                            "everything", "budget",     "offload"};
  const bool off = c.checkpoint == CheckpointOrder::kOff;
  std::string name =
      absl::StrCat(std::string(NameOf(c.dtype)), " W", c.ranks, " micro", c.micro_batches,
                   " reshard ", c.reshard ? "on" : "off", " calls ", c.calls, " prefetch ",
                   c.prefetch, " checkpoint ", orders[static_cast<int>(c.checkpoint)],
                   off ? "" : ", ", off ? "" : policies[static_cast<int>(c.policy)]);
  const auto cuts = [](const AxisPlacement& axis) {
    return static_cast<int>(axis.parameters) + static_cast<int>(axis.gradients) +
           static_cast<int>(axis.optimizer);
  };
  if (!(c.stage == kZero3) || c.inside > 0) {
    absl::StrAppend(&name, ", zero ", cuts(c.stage.shard), "/", cuts(c.stage.replicate), " inside ",
                    c.inside == 0 ? c.ranks : c.inside);
  }
  const char* syncs[] = {"", ", full each", ", last", ", caller"};
  absl::StrAppend(&name, syncs[static_cast<int>(c.sync)], c.offload ? ", offload" : "",
                  c.reduce_once ? ", once" : "", c.keep ? ", keep" : "",
                  c.park > 0 ? absl::StrCat(", park ", c.park) : "");
  if (c.precision.parameters) {
    absl::StrAppend(&name, ", in ", std::string(NameOf(*c.precision.parameters)));
  }
  if (c.precision.reduce) {
    absl::StrAppend(&name, ", wire ", std::string(NameOf(*c.precision.reduce)));
  }
  return name;
}

void ExpectParity(const GridCase& c) {
  ExpectParity(
      c, [](int ranks, const std::function<void(World&)>& body) { RunRanks(ranks, body); }, {},
      true);
}

void ExpectParity(const GridCase& c, const RanksRunner& run_ranks, const RankOptions& alone,
                  bool bits) {
  SCOPED_TRACE(NameOf(c));
  const Reference& reference = ReferenceFor(c.dtype, c.calls);
  const bool mixed = IsMixed(c);
  const RunResult& want = mixed ? MixedReferenceFor(c, alone) : reference.run;
  const RunResult* plain = c.ranks == 1 && !mixed && bits ? &PlainFor(c) : nullptr;
  std::mutex mutex;
  double worst = 0.0;
  run_ranks(c.ranks, [&](World& world) {
    const RunResult run =
        Train(world, c, c.dtype == DType::kF64 && !mixed ? nullptr : &reference.starts, nullptr);
    const std::lock_guard<std::mutex> lock(mutex);
    worst = std::max(worst, Compare(c, run, want));
    if (plain != nullptr) {
      EXPECT_EQ(run.losses, plain->losses) << "bits without checkpoints";
      EXPECT_EQ(run.gradients, plain->gradients) << "bits without checkpoints";
    }
    const int64_t calls = int64_t{kSteps} * c.calls * c.micro_batches;
    const bool plain_options = c.stage == kZero3 && c.sync == WindowSync::kCutEach && !c.offload &&
                               !c.reduce_once && !c.keep && c.inside == 0;
    if (plain_options) {
      EXPECT_EQ(run.plain_reductions, calls);
    }
    if (plain_options && c.reshard) {
      EXPECT_EQ(run.plain_gathers, 2 * calls);
    }
  });
  std::printf("%-95s worst relative error %.1e%s\n", NameOf(c).c_str(), worst,
              plain != nullptr ? "; bits as without checkpoints" : "");
}

}  // namespace sherd::testing
