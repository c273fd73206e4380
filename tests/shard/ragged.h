#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/autograd/ops/elementwise.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/shard/window.h"
#include "tests/shard/model.h"

namespace sherd::testing {

// A ragged data set: sample i has kTokens[i] labelled rows, or one row without a label.
inline constexpr int64_t kTokens[] = {3, 1, 0, 2, 5, 1};
inline constexpr int kSamples = 6;

// Samples that go through the model together.
struct Samples {
  std::vector<int> samples;

  int64_t items() const {
    int64_t items = 0;
    for (int sample : samples) items += kTokens[sample];
    return items;
  }
};

// Two blocks with dropout behind each, and a head.
class RaggedModel : public Module {
 public:
  RaggedModel() : model(2) { RegisterModule("model", model); }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](RaggedModel& self, const Variable& x) {
          Variable y = x;
          for (int i : {0, 1, 0}) y = Dropout(self.model.block(i)(y), 0.25);
          return self.model.head(y);
        },
        x);
  }
  ShardModel model;
};

struct RaggedSetup {
  bool sharded = true;
  bool checkpoint = false;
  bool checkpoint_outside = false;
  FullyShardOptions options = {};
};

// A model, its values and its tape on one rank.
struct RaggedRank {
  RaggedRank(World& world, const RaggedSetup& setup, const Mesh* mesh = nullptr) : world(world) {
    const Mesh& on = mesh != nullptr ? *mesh : world.mesh();
    for (auto& block : model.model.blocks) {
      if (setup.checkpoint) Checkpoint(*block);
      if (setup.sharded) FullyShard(*block, on, setup.options);
      if (setup.checkpoint_outside) Checkpoint(*block, {.wrong_order = WrongOrder::kAllow});
    }
    if (setup.sharded) FullyShard(model, on, {.stage = setup.options.stage});
    Initialize(model, world.device(), 1);
  }

  // Rows of a batch: each labelled token, and one row of a sample that has none. Row r of sample i
  // is number 10 i + r, which its input and its dropout follow.
  static std::vector<int64_t> RowsOf(const Samples& batch) {
    std::vector<int64_t> rows;
    for (int sample : batch.samples) {
      for (int64_t r = 0; r < std::max<int64_t>(kTokens[sample], 1); ++r) {
        rows.push_back(10 * sample + r);
      }
    }
    return rows;
  }

  // The sum over labelled rows of the squares of the model's output; a row without a label has
  // weight 0.
  LossSum Loss(const Samples& batch) {
    const std::vector<int64_t> rows = RowsOf(batch);
    std::vector<double> x, weight;
    for (int64_t row : rows) {
      for (int64_t c = 0; c < ShardBlock::kChannels; ++c) {
        x.push_back(std::sin(static_cast<double>(1 + 7 * row + 3 * c)));
      }
      for (int64_t c = 0; c < 3; ++c) weight.push_back(kTokens[row / 10] > 0 ? 1.0 : 0.0);
    }
    const auto count = static_cast<int64_t>(rows.size());
    const Variable input(
        Tensor::FromHost<double>(world.device(), x, {count, ShardBlock::kChannels}));
    const Variable weights(Tensor::FromHost<double>(world.device(), weight, {count, 3}));
    const Variable y = model(input);
    return {Sum(Mul(weights, Mul(y, y))), batch.items()};
  }

  RecordingOptions Randomness(int64_t step, const Samples& batch) const {
    return {.seed = 5, .step = step, .samples = RowsOf(batch)};
  }

  World& world;
  RaggedModel model;
  Tape tape;
};

// The micro-batches of one rank: groups of `rows` samples, dealt to the ranks in turn.
inline std::vector<Samples> DealOut(int rows, int rank, int ranks) {
  std::vector<Samples> mine;
  for (int begin = 0, k = 0; begin < kSamples; begin += rows, ++k) {
    if (k % ranks != rank) continue;
    Samples batch;
    for (int i = begin; i < std::min(begin + rows, kSamples); ++i) batch.samples.push_back(i);
    mine.push_back(batch);
  }
  return mine;
}

// Keeps the gradients of a step as an optimizer would take them, whole. COLLECTIVE.
class KeepStep final : public Optimizer {
 public:
  KeepStep(const Module& model, ProcessGroup* group)
      : model_(model), group_(group), parameters_(model.parameters()) {}
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void Step(const StepOptions& options) override {
    ++steps;
    learning_rate = options.learning_rate;
    gradients = GradientsOf(model_, group_);
    for (auto& [name, values] : gradients) {
      for (double& value : values) value *= options.grad_scale;
    }
  }
  Whole gradients;
  int steps = 0;
  double learning_rate = 0.0;

 private:
  const Module& model_;
  ProcessGroup* group_;
  const std::vector<Parameter> parameters_;
};

// Gives out the batches, each once.
template <typename Batch>
auto LoaderFor(std::vector<Batch> batches) {
  return [batches = std::move(batches), next = size_t{0}]() mutable -> std::optional<Batch> {
    return next < batches.size() ? std::optional(batches[next++]) : std::nullopt;
  };
}

}  // namespace sherd::testing
