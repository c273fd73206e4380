#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sherd/autograd/variable.h"
#include "sherd/runtime/core/random.h"
#include "sherd/shard/ranking_loss.h"
#include "tests/support/tensors.h"

// A batch of pairs, its loss by plain loops in f64, and how it is cut over ranks.
namespace sherd::testing {

using Matrix = std::vector<std::vector<double>>;

// The joined batch.
struct Pairs {
  Matrix queries, documents, negatives;
  std::vector<int64_t> query_ids, document_ids, negative_ids;   // empty: none
  double log_scale = std::numeric_limits<double>::quiet_NaN();  // NaN: none
};

inline Matrix RandomRows(int64_t rows, int64_t columns, uint64_t seed) {
  Matrix m(static_cast<size_t>(rows), std::vector<double>(static_cast<size_t>(columns)));
  for (size_t i = 0; i < m.size(); ++i) {
    for (size_t c = 0; c < m[i].size(); ++c) {
      const auto words = Philox4x32(seed, i * 1000 + c, 3);
      m[i][c] = Normal(words[0], words[1]);
    }
  }
  return m;
}

inline Pairs RandomPairs(int64_t pairs, int64_t negatives, int64_t columns) {
  Pairs batch;
  batch.queries = RandomRows(pairs, columns, 1);
  batch.documents = RandomRows(pairs, columns, 2);
  batch.negatives = RandomRows(negatives, columns, 3);
  return batch;
}

// The sum over pairs, and d sum / d everything.
struct PairsGradient {
  double loss = 0.0;
  Matrix queries, documents, negatives;
  double log_scale = 0.0;
};

// The first `columns` of a row as a score sees it, and how a gradient of that reaches the row.
struct PreparedRow {
  std::vector<double> value;
  double norm = 1.0;
};

inline PreparedRow Prepare(const std::vector<double>& row, int64_t columns, bool normalize) {
  PreparedRow prepared;
  prepared.value.assign(row.begin(), row.begin() + columns);
  if (!normalize) return prepared;
  double squares = 0.0;
  for (double v : prepared.value) squares += v * v;
  prepared.norm = std::sqrt(squares);
  for (double& v : prepared.value) v /= prepared.norm;
  return prepared;
}

inline void AddPrepared(const PreparedRow& row, const std::vector<double>& grad, bool normalize,
                        std::vector<double>& out) {
  double dot = 0.0;
  for (size_t c = 0; c < grad.size(); ++c) dot += grad[c] * row.value[c];
  for (size_t c = 0; c < grad.size(); ++c) {
    out[c] += normalize ? (grad[c] - dot * row.value[c]) / row.norm : grad[c];
  }
}

// One direction: rows against columns, row i against its column i. `left_out(i, j)` columns do not
// count.
template <typename LeftOut>
double RankRows(const Matrix& rows, const Matrix& columns, int64_t width, double scale,
                bool normalize, double weight, const LeftOut& left_out, Matrix& grad_rows,
                Matrix& grad_columns, double& grad_log_scale) {
  std::vector<PreparedRow> a, b;
  for (const auto& row : rows) a.push_back(Prepare(row, width, normalize));
  for (const auto& row : columns) b.push_back(Prepare(row, width, normalize));
  const auto n = static_cast<size_t>(width);
  Matrix grad_a(rows.size(), std::vector<double>(n, 0.0));
  Matrix grad_b(columns.size(), std::vector<double>(n, 0.0));
  double loss = 0.0;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<double> score(columns.size(), 0.0);
    double most = -std::numeric_limits<double>::infinity();
    for (size_t j = 0; j < columns.size(); ++j) {
      for (size_t c = 0; c < n; ++c) score[j] += scale * a[i].value[c] * b[j].value[c];
      if (!left_out(i, j)) most = std::max(most, score[j]);
    }
    double sum = 0.0;
    for (size_t j = 0; j < columns.size(); ++j) {
      if (!left_out(i, j)) sum += std::exp(score[j] - most);
    }
    loss += weight * (most + std::log(sum) - score[i]);
    for (size_t j = 0; j < columns.size(); ++j) {
      if (left_out(i, j)) continue;
      const double g = weight * (std::exp(score[j] - most) / sum - (i == j ? 1.0 : 0.0));
      grad_log_scale += g * score[j];
      for (size_t c = 0; c < n; ++c) {
        grad_a[i][c] += g * scale * b[j].value[c];
        grad_b[j][c] += g * scale * a[i].value[c];
      }
    }
  }
  for (size_t i = 0; i < rows.size(); ++i) AddPrepared(a[i], grad_a[i], normalize, grad_rows[i]);
  for (size_t j = 0; j < columns.size(); ++j) {
    AddPrepared(b[j], grad_b[j], normalize, grad_columns[j]);
  }
  return loss;
}

inline bool Has(const std::vector<int64_t>& ids, size_t i, int64_t id) {
  return !ids.empty() && ids[i] == id;
}

// Whether pair j answers query i too.
inline bool SamePair(const Pairs& batch, size_t i, size_t j) {
  for (size_t k = 0; k < batch.queries.size(); ++k) {
    const bool of_query =
        k == i || (!batch.query_ids.empty() && Has(batch.query_ids, k, batch.query_ids[i]));
    if (!of_query) continue;
    if (k == j) return true;
    if (!batch.document_ids.empty() && Has(batch.document_ids, j, batch.document_ids[k]))
      return true;
  }
  return false;
}

inline bool NegativeAnswers(const Pairs& batch, size_t i, size_t m) {
  if (batch.negative_ids.empty() || batch.document_ids.empty()) return false;
  for (size_t k = 0; k < batch.queries.size(); ++k) {
    const bool of_query =
        k == i || (!batch.query_ids.empty() && Has(batch.query_ids, k, batch.query_ids[i]));
    if (of_query && batch.document_ids[k] == batch.negative_ids[m]) return true;
  }
  return false;
}

// What one process that holds the joined batch computes.
inline PairsGradient JoinedLoss(const Pairs& batch, const RankingOptions& options) {
  const size_t pairs = batch.queries.size();
  const size_t width = batch.queries[0].size();
  PairsGradient out;
  out.queries.assign(pairs, std::vector<double>(width, 0.0));
  out.documents = out.queries;
  out.negatives.assign(batch.negatives.size(), std::vector<double>(width, 0.0));
  const bool learnable = !std::isnan(batch.log_scale);
  const double scale = learnable ? std::exp(batch.log_scale) : 1.0 / options.temperature;
  Matrix columns = batch.documents;
  columns.insert(columns.end(), batch.negatives.begin(), batch.negatives.end());
  Matrix grad_columns(columns.size(), std::vector<double>(width, 0.0));
  std::vector<MatryoshkaColumns> parts = options.matryoshka;
  if (parts.empty()) parts = {{static_cast<int64_t>(width), 1.0}};
  for (const MatryoshkaColumns& part : parts) {
    const double weight = options.symmetric ? part.weight / 2 : part.weight;
    out.loss += RankRows(
        batch.queries, columns, part.columns, scale, options.normalize, weight,
        [&](size_t i, size_t j) {
          if (j >= pairs) return NegativeAnswers(batch, i, j - pairs);
          return i != j && SamePair(batch, i, j);
        },
        out.queries, grad_columns, out.log_scale);
    if (!options.symmetric) continue;
    out.loss += RankRows(
        batch.documents, batch.queries, part.columns, scale, options.normalize, weight,
        [&](size_t i, size_t j) { return i != j && SamePair(batch, i, j); }, out.documents,
        out.queries, out.log_scale);
  }
  for (size_t j = 0; j < columns.size(); ++j) {
    auto& to = j < pairs ? out.documents[j] : out.negatives[j - pairs];
    for (size_t c = 0; c < width; ++c) to[c] += grad_columns[j][c];
  }
  return out;
}

// How many rows each rank has.
using Cut = std::vector<int64_t>;

inline int64_t Before(const Cut& cut, int rank) {
  int64_t before = 0;
  for (int r = 0; r < rank; ++r) before += cut[static_cast<size_t>(r)];
  return before;
}

template <typename T>
std::vector<T> PartOf(const std::vector<T>& all, const Cut& cut, int rank) {
  if (all.empty()) return {};
  const auto begin = all.begin() + Before(cut, rank);
  return {begin, begin + cut[static_cast<size_t>(rank)]};
}

inline Tensor RowsTensor(const Device& device, const Matrix& rows, int64_t columns) {
  std::vector<double> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return TensorOf<double>(device, flat, {static_cast<int64_t>(rows.size()), columns});
}

inline Tensor IdsTensor(const Device& device, const std::vector<int64_t>& all, const Cut& cut,
                        int rank) {
  if (all.empty()) return Tensor();
  const std::vector<int64_t> own = PartOf(all, cut, rank);
  return TensorOf<int64_t>(device, own, {static_cast<int64_t>(own.size())});
}

// |got - want| / |want| over all elements.
inline double RelativeError(const std::vector<double>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double difference = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  return difference == 0.0 ? 0.0 : std::sqrt(difference / norm);
}

inline std::vector<double> Flat(const Matrix& rows) {
  std::vector<double> flat;
  for (const auto& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

}  // namespace sherd::testing
