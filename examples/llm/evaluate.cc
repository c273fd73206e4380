#include "llm/evaluate.h"

#include <optional>
#include <vector>

#include "data/loader.h"
#include "data/turns.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/shard/evaluation.h"

namespace llm {

double Evaluate(TextModel& model, const sherd::World& world, const data::Samples& samples,
                std::span<const int64_t> which, int64_t rows) {
  const sherd::CausalLmLoss loss({.ignore_index = data::kIgnored});
  const std::vector<std::vector<int64_t>> mine =
      data::MicroBatchesOf(which, data::CutMicroBatches(static_cast<int64_t>(which.size()), rows),
                           world.rank(), world.size());
  auto next = mine.begin();
  const auto loader = [&]() -> std::optional<data::Batch> {
    if (next == mine.end()) return std::nullopt;
    return data::MakeBatch(samples, *next++, world.device());
  };
  const auto forward = [&](const data::Batch& batch) {
    return loss(model(InputOf(batch)), batch.labels);
  };
  return sherd::Evaluate(model, loader, forward).loss;
}

}  // namespace llm
