#include "contrastive/retrieval.h"

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>
#include <vector>

#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/indexing.h"
#include "sherd/autograd/ops/linear.h"

namespace contrastive {
namespace {

using sherd::Tensor;
using sherd::Variable;

Variable RowsOf(const Tensor& embeddings, const std::vector<int64_t>& texts) {
  const Tensor ids =
      Tensor::FromHost<int64_t>(embeddings.device(), texts, {static_cast<int64_t>(texts.size())});
  return sherd::GatherRows(Variable(embeddings), Variable(ids));
}

// From 1; numbers that are none count as better. `right` are columns that do not count, of which
// `own` is one.
int64_t PlaceOf(std::span<const float> scores, size_t own, const std::set<size_t>& right) {
  int64_t place = 1;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!(scores[i] < scores[own]) && !right.contains(i)) ++place;
  }
  return place;
}

}  // namespace

std::map<std::string, double> Retrieval::Measures() const {
  return {{"recall@1", recall_1}, {"recall@10", recall_10}, {"mrr", mrr}};
}

Retrieval MeasureRetrieval(const PairSet& set, int64_t begin, int64_t end, const Tensor& embeddings,
                           sherd::ProcessGroup& group) {
  std::vector<int64_t> documents, queries;
  std::unordered_map<int64_t, size_t> column;           // of a document
  std::unordered_map<int64_t, std::set<size_t>> right;  // columns that answer a query
  for (const Pair& pair : set.pairs) {
    const auto [found, is_new] = column.try_emplace(pair.document, documents.size());
    if (is_new) documents.push_back(pair.document);
    right[pair.query].insert(found->second);
  }
  for (int64_t i = begin; i < end; ++i) {
    queries.push_back(set.pairs[static_cast<size_t>(i)].query);
  }
  std::array<double, 4> sums = {};
  if (!queries.empty()) {
    const Variable products =
        sherd::Linear(RowsOf(embeddings, queries), RowsOf(embeddings, documents));
    const std::vector<float> scores =
        sherd::Cast(products, sherd::DType::kF32).value().ToHost<float>();
    for (size_t row = 0; row < queries.size(); ++row) {
      const Pair& pair = set.pairs[static_cast<size_t>(begin) + row];
      const int64_t place =
          PlaceOf(std::span(scores).subspan(row * documents.size(), documents.size()),
                  column.at(pair.document), right.at(pair.query));
      sums[0] += place == 1 ? 1.0 : 0.0;
      sums[1] += place <= 10 ? 1.0 : 0.0;
      sums[2] += 1.0 / static_cast<double>(place);
      sums[3] += 1.0;
    }
  }
  group.AllReduce(sums.data(), sums.size(), sherd::DType::kF64, {.op = "retrieval"});
  return {.recall_1 = sums[0] / sums[3], .recall_10 = sums[1] / sums[3], .mrr = sums[2] / sums[3]};
}

}  // namespace contrastive
