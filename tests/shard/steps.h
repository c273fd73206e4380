#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

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
    window->Backward({loss(input), kItems});
  }
  return window->Finish(optimizer, with.learning_rate, {.clip = with.clip, .norm = with.norm});
}

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
