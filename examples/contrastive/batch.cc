#include "contrastive/batch.h"

#include <algorithm>
#include <cstddef>

namespace contrastive {
namespace {

using sherd::Tensor;

// A text of the batch, before rows are in order.
struct Row {
  int64_t text = 0;
  int64_t sample = 0;
};

}  // namespace

std::span<const int64_t> PartOf(std::span<const int64_t> window, int rank, int size) {
  const auto at = [&](int r) {
    return window.size() * static_cast<size_t>(r) / static_cast<size_t>(size);
  };
  return window.subspan(at(rank), at(rank + 1) - at(rank));
}

Batch MakeBatch(const PairSet& set, std::span<const std::vector<int64_t>> tokens,
                std::span<const int64_t> which, int64_t calls, const sherd::Device& device) {
  const int64_t texts_of_pair = 2 + set.most_negatives();
  std::vector<Row> rows;
  std::vector<size_t> queries, documents, negatives;  // places in `rows`
  std::vector<int64_t> query_ids, document_ids, negative_ids;
  for (const int64_t i : which) {
    const Pair& pair = set.pairs[static_cast<size_t>(i)];
    int64_t sample = i * texts_of_pair;
    const auto add = [&](int64_t text, std::vector<size_t>& places, std::vector<int64_t>& ids) {
      places.push_back(rows.size());
      ids.push_back(text);
      rows.push_back({text, sample++});
    };
    add(pair.query, queries, query_ids);
    add(pair.document, documents, document_ids);
    for (const int64_t text : pair.negatives) add(text, negatives, negative_ids);
  }
  std::vector<size_t> order(rows.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(
      order, {}, [&](size_t i) { return tokens[static_cast<size_t>(rows[i].text)].size(); });
  std::vector<int64_t> row_of(rows.size());
  for (size_t row = 0; row < order.size(); ++row) row_of[order[row]] = static_cast<int64_t>(row);

  Batch batch{.pairs = static_cast<int64_t>(which.size())};
  const size_t parts = std::min(static_cast<size_t>(calls), rows.size());
  for (size_t call = 0; call < parts; ++call) {
    std::vector<int64_t>& texts = batch.texts.emplace_back();
    std::vector<int64_t>& samples = batch.samples.emplace_back();
    for (size_t r = rows.size() * call / parts; r < rows.size() * (call + 1) / parts; ++r) {
      texts.push_back(rows[order[r]].text);
      samples.push_back(rows[order[r]].sample);
    }
  }
  const auto made = [&](const std::vector<int64_t>& values) {
    return Tensor::FromHost<int64_t>(device, values, {static_cast<int64_t>(values.size())});
  };
  const auto places = [&](const std::vector<size_t>& of) {
    std::vector<int64_t> values;
    for (const size_t i : of) values.push_back(row_of[i]);
    return made(values);
  };
  batch.queries = places(queries);
  batch.documents = places(documents);
  batch.negatives = places(negatives);
  batch.ids = {
      .queries = made(query_ids), .documents = made(document_ids), .negatives = made(negative_ids)};
  return batch;
}

}  // namespace contrastive
