#include "llm/evaluate.h"

#include <optional>

#include "data/order.h"
#include "llm/batches.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/shard/evaluation.h"

namespace llm {

double Evaluate(Llama& model, const sherd::World& world, std::span<const uint8_t> text,
                std::span<const int64_t> starts, int64_t rows) {
  const sherd::CausalLmLoss loss({.ignore_index = kIgnored});
  const auto mine = data::ShareOf(data::CutMicroBatches(static_cast<int64_t>(starts.size()), rows),
                                  world.rank(), world.size());
  auto next = mine.begin();
  const auto loader = [&]() -> std::optional<Batch> {
    if (next == mine.end()) return std::nullopt;
    const data::Range range = *next++;
    const auto part = starts.subspan(static_cast<size_t>(range.begin),
                                     static_cast<size_t>(range.end - range.begin));
    return MakeBatch(text, part, model.config().positions, world.device());
  };
  const auto forward = [&](const Batch& batch) { return loss(model(batch.tokens), batch.labels); };
  return sherd::Evaluate(model, loader, forward).loss;
}

}  // namespace llm
