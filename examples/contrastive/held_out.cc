#include "contrastive/held_out.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "contrastive/batch.h"
#include "sherd/autograd/ops/indexing.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/shard/evaluation.h"
#include "sherd/shard/gather_rows.h"

namespace contrastive {
namespace {

using sherd::Tensor;
using sherd::Variable;

constexpr int64_t kRows = 64;  // of a call

Tensor Ids(const sherd::Device& device, const std::vector<int64_t>& values) {
  return Tensor::FromHost<int64_t>(device, values, {static_cast<int64_t>(values.size())});
}

// Texts by length, dealt round the ranks: those of one rank.
std::vector<int64_t> TextsOf(const std::vector<int64_t>& order, int rank, int size) {
  std::vector<int64_t> mine;
  for (auto i = static_cast<size_t>(rank); i < order.size(); i += static_cast<size_t>(size)) {
    mine.push_back(order[i]);
  }
  return mine;
}

}  // namespace

Tensor EmbedTexts(llm::TextModel& model, const Encoder& encoder, const Data& data,
                  sherd::World& world) {
  const sherd::Device& device = world.device();
  std::vector<int64_t> order(data.tokens.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::ranges::stable_sort(order, {},
                           [&](int64_t i) { return data.tokens[static_cast<size_t>(i)].size(); });
  const std::vector<int64_t> mine = TextsOf(order, world.rank(), world.size());
  std::vector<Variable> parts;
  size_t taken = 0;
  const auto loader = [&]() -> std::optional<std::span<const int64_t>> {
    if (taken == mine.size()) return std::nullopt;
    const size_t rows = std::min(static_cast<size_t>(kRows), mine.size() - taken);
    taken += rows;
    return std::span(mine).subspan(taken - rows, rows);
  };
  const Variable nothing = Tensor::Zeros(device, sherd::DType::kF64, {1});
  sherd::Evaluate(model, loader, [&](std::span<const int64_t> texts) {
    parts.push_back(model(InputOf(encoder, data.tokens, texts, device)));
    return sherd::LossSum{.value = nothing};
  });
  const auto& sizes = std::get<llm::BertConfig>(encoder.config.sizes);
  const Tensor own = parts.empty() ? Tensor::Zeros(device, sizes.dtype, {0, sizes.dim})
                                   : sherd::Concat(parts, 0).value();
  const Tensor all = sherd::GatherRowsOf(own, world.group());
  // Back from the order of the ranks to that of the texts.
  std::vector<int64_t> places(order.size());
  int64_t place = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const int64_t text : TextsOf(order, rank, world.size())) {
      places[static_cast<size_t>(text)] = place++;
    }
  }
  return sherd::GatherRows(Variable(all), Variable(Ids(device, places))).value();
}

HeldOut Measure(llm::TextModel& model, const Encoder& encoder, const Data& data,
                sherd::World& world, const sherd::RankingOptions& ranking) {
  const Tensor embeddings = EmbedTexts(model, encoder, data, world);
  const int64_t pairs = data.set.size();
  const int64_t begin = pairs * world.rank() / world.size();
  const int64_t end = pairs * (world.rank() + 1) / world.size();
  std::vector<int64_t> queries, documents, negatives;
  for (int64_t i = begin; i < end; ++i) {
    const Pair& pair = data.set.pairs[static_cast<size_t>(i)];
    queries.push_back(pair.query);
    documents.push_back(pair.document);
    negatives.insert(negatives.end(), pair.negatives.begin(), pair.negatives.end());
  }
  const auto rows = [&](const std::vector<int64_t>& texts) {
    return sherd::GatherRows(Variable(embeddings), Variable(Ids(world.device(), texts)));
  };
  const sherd::LossSum loss = sherd::RankingLoss(
      {.queries = rows(queries), .documents = rows(documents), .negatives = rows(negatives)},
      world.group(), ranking,
      {.queries = Ids(world.device(), queries),
       .documents = Ids(world.device(), documents),
       .negatives = Ids(world.device(), negatives)});
  std::array<double, 2> sums = {loss.value.value().Item<double>(), static_cast<double>(loss.items)};
  world.group().AllReduce(sums.data(), sums.size(), sherd::DType::kF64, {.op = "held-out loss"});
  return {.loss = sums[0] / sums[1],
          .retrieval = MeasureRetrieval(data.set, begin, end, embeddings, world.group())};
}

}  // namespace contrastive
