#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/runtime/comm/recording_group.h"
#include "sherd/shard/window.h"
#include "tests/shard/model.h"

namespace sherd::testing {

// Runs `body` on `ranks` ranks; it is given its world and the log of its rank's collectives.
inline void RunRanksLogged(int ranks, const std::function<void(World&, CollectiveLog&)>& body) {
  std::vector<std::shared_ptr<CollectiveLog>> logs;
  for (int rank = 0; rank < ranks; ++rank) logs.push_back(std::make_shared<CollectiveLog>());
  RankOptions options;
  options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) -> std::shared_ptr<ProcessGroup> {
    const auto log = logs[static_cast<size_t>(group->rank())];
    return MakeRecordingGroup(std::move(group), log);
  };
  RunRanks(
      ranks, [&](World& world) { body(world, *logs[static_cast<size_t>(world.rank())]); }, options);
}

inline void ExpectErrorHas(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) EXPECT_TRUE(Contains(text, part));
}

// Takes a window of one micro-batch for each input, of so many items, and finishes it. `loss` makes
// the loss of an input, one number in f64.
inline constexpr int64_t kItems = 3;
inline StepResult RunWindow(Accumulation& accumulation, Optimizer& optimizer, Tape& tape,
                            const std::vector<uint64_t>& inputs,
                            const std::function<Variable(uint64_t)>& loss,
                            const FinishOptions& finish) {
  size_t next = 0;
  const auto loader = [&]() -> std::optional<uint64_t> {
    return next < inputs.size() ? std::optional(inputs[next++]) : std::nullopt;
  };
  auto window = accumulation.Next(loader, [](uint64_t) { return kItems; });
  for (uint64_t input : *window) {
    const Recording on(tape);
    window->Backward({loss(input), kItems});
  }
  return window->Finish(optimizer, finish);
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
