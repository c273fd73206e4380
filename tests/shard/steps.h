#pragma once

#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sherd/autograd/optim/adamw.h"
#include "sherd/shard/window.h"
#include "tests/shard/model.h"
#include "tests/shard/recorded.h"

namespace sherd::testing {

inline void ExpectErrorHas(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_TRUE(Contains(text, part));
}

// What a step of RunWindow is told.
struct StepWith {
  double learning_rate = 1e-3;
  double clip = 0.0;
  NormType norm = NormType::kTwo;
  // Around the backward of each micro-batch.
  std::function<void()> before_backward = [] {};
  std::function<void()> after_backward = [] {};
};

// Takes a window of one micro-batch for each input, of so many items, and finishes it. `loss` makes
// the loss of an input, one number in f64.
inline constexpr int64_t kItems = 3;
inline StepResult RunWindow(Accumulation& accumulation, Optimizer& optimizer, Tape& tape,
                            const std::vector<uint64_t>& inputs,
                            const std::function<Variable(uint64_t)>& loss, const StepWith& with) {
  size_t next = 0;
  const auto loader = [&]() -> std::optional<uint64_t> {
    return next < inputs.size() ? std::optional(inputs[next++]) : std::nullopt;
  };
  auto window = accumulation.Next(loader, [](uint64_t) { return kItems; });
  for (uint64_t input : *window) {
    const Recording on(tape);
    const Variable value = loss(input);
    with.before_backward();
    window->Backward({value, kItems});
    with.after_backward();
  }
  return window->Finish(optimizer, with.learning_rate, {.clip = with.clip, .norm = with.norm});
}

// A trainer of windows of so many inputs of each rank's own, through the model's first three
// blocks.
class WindowTrainer {
 public:
  WindowTrainer(const World& world, ShardModel& model, int64_t micro_batches, StepWith with = {})
      : world_(world),
        model_(model),
        with_(std::move(with)),
        optimizer_(model.parameters()),
        accumulation_(model, {.micro_batches = micro_batches}),
        inputs_(static_cast<size_t>(micro_batches)) {
    std::iota(inputs_.begin(), inputs_.end(), uint64_t{0});
  }

  void Step() {
    Tape tape;
    const auto loss = [this](uint64_t input) {
      return Energy(model_(InputOf(world_.device(), world_.rank(), input), {0, 1, 2}));
    };
    RunWindow(accumulation_, optimizer_, tape, inputs_, loss, with_);
  }

 private:
  const World& world_;
  ShardModel& model_;
  const StepWith with_;
  AdamW optimizer_;
  Accumulation accumulation_;
  std::vector<uint64_t> inputs_;
};

// Keeps the gradients that a window hands to the optimizer, whole, and changes nothing. COLLECTIVE.
class KeepGradients final : public Optimizer {
 public:
  KeepGradients(const Module& model, ProcessGroup* group)
      : model_(model), group_(group), parameters_(model.parameters()) {}
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  void Step(const StepOptions&) override { gradients = GradientsOf(model_, group_); }
  Whole gradients;

 private:
  const Module& model_;
  ProcessGroup* group_;
  const std::vector<Parameter> parameters_;
};

}  // namespace sherd::testing
