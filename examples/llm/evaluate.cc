#include "llm/evaluate.h"

#include <algorithm>
#include <array>
#include <vector>

#include "llm/batches.h"
#include "sherd/autograd/loss/causal_lm.h"

namespace llm {

double Evaluate(Llama& model, sherd::ProcessGroup& group, std::span<const uint8_t> text,
                std::span<const int64_t> starts, int64_t rows, const sherd::Device& device) {
  const sherd::CausalLmLoss loss({.ignore_index = kIgnored});
  const auto count = static_cast<int64_t>(starts.size());
  const int64_t per_call = rows * group.size();
  double loss_sum = 0.0;
  int64_t items = 0;
  for (int64_t first = 0; first < count; first += per_call) {
    const int64_t begin = std::min(first + group.rank() * rows, count);
    const int64_t end = std::min(begin + rows, count);
    const Batch batch = MakeBatch(
        text, starts.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)), rows,
        model.config().positions, device);
    const sherd::LossSum sum = loss(model(batch.tokens), batch.labels);
    loss_sum += *sum.value.value().data<double>();
    items += sum.items;
  }
  std::array<double, 2> sums = {loss_sum, static_cast<double>(items)};
  group.AllReduce(sums.data(), sums.size(), sherd::DType::kF64, {.op = "evaluate"});
  return sums[0] / sums[1];
}

}  // namespace llm
