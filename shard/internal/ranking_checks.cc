#include "sherd/shard/internal/ranking_checks.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/random.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/internal/rank_table.h"

namespace sherd::internal {
namespace {

constexpr char kOp[] = "ranking_loss";

// What a rank may have found wrong with what it was given.
enum Problem : int64_t {
  kNone,
  kNoMatrix,     // which, -
  kNotSame,      // which, -
  kCounts,       // queries, documents
  kTemperature,  // -
  kMatryoshka,   // which, columns
  kNotFinite,    // which, row
  kZeroLength,   // which, row
  kIdCount,      // which, rows
  kLogScale,     // -
  kScaleValue    // -
};

// What ranks tell each other.
enum Field : size_t {
  kProblem,
  kDetail,
  kMore,
  kPairs,
  kNegatives,
  kColumns,
  kDType,
  kQueryIds,  // 1: there, 0: not, -1: no rows
  kDocumentIds,
  kNegativeIds,
  kTemperatureBits,
  kSwitches,
  kMatryoshkaHash,
  kFields
};
using Row = std::array<int64_t, kFields>;

constexpr const char* kNames[] = {"queries", "documents", "negatives"};

bool IsMatrix(const Variable& x) {
  return x.defined() && IsFloating(x.dtype()) && x.shape().rank() == 2;
}

bool IsSame(const Variable& x, const Variable& queries) {
  return x.dtype() == queries.dtype() && x.dim(1) == queries.dim(1) &&
         x.value().device() == queries.value().device();
}

int64_t BitsOf(double value) { return std::bit_cast<int64_t>(value); }

void Say(Row& row, Problem problem, int64_t detail = 0, int64_t more = 0) {
  if (row[kProblem] != kNone) return;
  row[kProblem] = problem;
  row[kDetail] = detail;
  row[kMore] = more;
}

std::vector<double> HostValues(const Tensor& x) {
  if (x.numel() == 0) return {};
  if (x.dtype() == DType::kF64) return x.ToHost<double>();
  const Tensor wide = Tensor::Empty(x.device(), DType::kF64, x.shape(), MemoryCategory::kWorkspace);
  kernels::Cast(x, wide);
  return wide.ToHost<double>();
}

// How many of the first columns have to have a direction by themselves.
int64_t NarrowestPart(const RankingOptions& options, int64_t columns) {
  for (const MatryoshkaColumns& part : options.matryoshka) {
    columns = std::min(columns, part.columns);
  }
  return columns;
}

// Rows of NaN or infinity, or without a direction.
void CheckValues(int64_t which, const Tensor& x, const RankingOptions& options, Row& row) {
  const std::vector<double> values = HostValues(x);
  const int64_t columns = x.dim(1);
  const int64_t narrowest = NarrowestPart(options, columns);
  const double least = options.normalize ? kLeastLength : 0.0;
  for (int64_t i = 0; i < x.dim(0); ++i) {
    bool finite = true;
    double squares = 0.0;
    for (int64_t c = 0; c < columns; ++c) {
      const double value = values[static_cast<size_t>(i * columns + c)];
      finite &= std::isfinite(value);
      if (c < narrowest) squares += value * value;
    }
    if (finite && std::sqrt(squares) > least) continue;
    return Say(row, finite ? kZeroLength : kNotFinite, which, i);
  }
}

// The learnable scale, as far as the options say that values are looked at.
void CheckScale(const Variable& log_scale, const RankingOptions& options, DType dtype, Row& row) {
  if (log_scale.value().numel() != 1 || !IsFloating(log_scale.dtype())) return Say(row, kLogScale);
  if (!options.check_values) return;
  const double value = HostValues(log_scale.value())[0];
  const double scale = std::exp(value);
  const double most = dtype == DType::kF64 ? std::numeric_limits<double>::max()
                                           : double{std::numeric_limits<float>::max()};
  if (!(scale > 0.0 && scale <= most)) Say(row, kScaleValue);
  row[kTemperatureBits] = BitsOf(value);
}

void CheckOptions(const RankingOptions& options, bool learnable, int64_t columns, Row& row) {
  const bool positive = options.temperature > 0.0 && std::isfinite(options.temperature) &&
                        std::isfinite(1.0 / options.temperature);
  if (!learnable && !positive) Say(row, kTemperature);
  for (size_t i = 0; i < options.matryoshka.size(); ++i) {
    const MatryoshkaColumns& part = options.matryoshka[i];
    const bool weighs = part.weight > 0.0 && std::isfinite(part.weight);
    if (weighs && part.columns >= 1 && part.columns <= columns) continue;
    Say(row, kMatryoshka, static_cast<int64_t>(i), part.columns);
  }
}

// Whether there are ids for `rows` rows.
int64_t CheckIds(int64_t which, const Tensor& ids, int64_t rows, Row& row) {
  if (ids.defined() && (ids.dtype() != DType::kI64 || ids.numel() != rows)) {
    Say(row, kIdCount, which, rows);
  }
  return rows == 0 ? -1 : ids.defined() ? 1 : 0;
}

Row Describe(const RankingEmbeddings& e, const RankingOptions& options, const RankingIds& ids) {
  Row row{};
  const bool learnable = e.log_scale.defined();
  row[kTemperatureBits] = learnable ? 0 : BitsOf(options.temperature);
  row[kSwitches] = (options.normalize ? 1 : 0) + (options.symmetric ? 2 : 0) + (learnable ? 4 : 0) +
                   (options.check_values ? 8 : 0);
  uint64_t hash = options.matryoshka.size();
  for (const MatryoshkaColumns& part : options.matryoshka) {
    hash = Mix64(Mix64(hash, static_cast<uint64_t>(part.columns)),
                 static_cast<uint64_t>(BitsOf(part.weight)));
  }
  row[kMatryoshkaHash] = static_cast<int64_t>(hash);
  const Variable* given[] = {&e.queries, &e.documents, &e.negatives};
  for (int64_t which = 0; which < 3; ++which) {
    const Variable& x = *given[which];
    if (which == 2 && !x.defined()) continue;
    if (!IsMatrix(x)) Say(row, kNoMatrix, which);
    if (row[kProblem] == kNone && !IsSame(x, e.queries)) Say(row, kNotSame, which);
  }
  if (row[kProblem] != kNone) return row;
  row[kPairs] = e.queries.dim(0);
  row[kNegatives] = e.negatives.defined() ? e.negatives.dim(0) : 0;
  row[kColumns] = e.queries.dim(1);
  row[kDType] = static_cast<int64_t>(e.queries.dtype());
  if (e.documents.dim(0) != row[kPairs]) Say(row, kCounts, row[kPairs], e.documents.dim(0));
  CheckOptions(options, learnable, row[kColumns], row);
  row[kQueryIds] = CheckIds(0, ids.queries, row[kPairs], row);
  row[kDocumentIds] = CheckIds(1, ids.documents, row[kPairs], row);
  row[kNegativeIds] = CheckIds(2, ids.negatives, row[kNegatives], row);
  if (learnable) CheckScale(e.log_scale, options, e.queries.dtype(), row);
  for (int64_t which = 0; which < 3 && options.check_values; ++which) {
    if (row[kProblem] == kNone && given[which]->defined()) {
      CheckValues(which, given[which]->value(), options, row);
    }
  }
  return row;
}

std::string TextOf(const RankTable& table, int rank) {
  const int64_t detail = table.at(rank, kDetail);
  const int64_t more = table.at(rank, kMore);
  const auto name = [&] { return std::string(kNames[detail]); };
  switch (table.at(rank, kProblem)) {
    case kNoMatrix:
      return absl::StrCat("has ", name(), " that are no float [rows, columns]");
    case kNotSame:
      return absl::StrCat("has ", name(), " of other columns, dtype or device than its queries");
    case kCounts:
      return absl::StrCat("has ", detail, " queries and ", more, " documents, which are no pairs");
    case kTemperature:
      return "has a temperature that is not positive";
    case kMatryoshka:
      return absl::StrCat("wants part ", detail, " of ", more, " of ", table.at(rank, kColumns),
                          " columns, with a weight; both are positive");
    case kNotFinite:
      return absl::StrCat("has NaN or infinity in row ", more, " of its ", name());
    case kZeroLength:
      return absl::StrCat("has only zeros in row ", more, " of its ", name(),
                          " or in its first columns, which have no direction");
    case kIdCount:
      return absl::StrCat("has ", more, " ", name(), " and other ids than one i64 for each");
    case kScaleValue:
      return "has a log_scale whose exponential is no positive number";
    default:
      return "has a log_scale that is no float [1]";
  }
}

void CheckSame(const RankTable& table, const ErrorContext& what) {
  const std::pair<Field, const char*> same[] = {{kColumns, "columns in its embeddings"},
                                                {kDType, "dtype"},
                                                {kSwitches, "options or learnable temperature"},
                                                {kTemperatureBits, "temperature"},
                                                {kMatryoshkaHash, "matryoshka"}};
  for (const auto& [field, name] : same) {
    const int rank = table.Differs(field);
    if (rank < 0) continue;
    ThrowInvalidArgument(absl::StrCat("rank ", rank, " has another ", name, " than rank 0"), what);
  }
}

// Whether the ranks that have rows have ids too.
bool AgreeOnIds(const RankTable& table, Field field, const char* name, const ErrorContext& what) {
  int with = -1;
  int without = -1;
  for (int r = 0; r < table.ranks(); ++r) {
    if (table.at(r, field) == 1 && with < 0) with = r;
    if (table.at(r, field) == 0 && without < 0) without = r;
  }
  if (with >= 0 && without >= 0) {
    ThrowInvalidArgument(
        absl::StrCat("rank ", without, " has no ids of its ", name, ", and rank ", with, " has"),
        what);
  }
  return with >= 0;
}

void CheckEnough(const RankingBatch& batch, bool symmetric, const ErrorContext& what) {
  if (batch.pairs == 0) ThrowInvalidArgument("no rank has a pair", what);
  if (batch.pairs + batch.negatives == 1) {
    ThrowInvalidArgument(
        "there is one pair on all ranks together and no negative: its document is told from "
        "nothing, and the loss would be 0",
        what);
  }
  if (symmetric && batch.pairs == 1) {
    ThrowInvalidArgument(
        "there is one pair on all ranks together: in the symmetric form its query is told from "
        "nothing",
        what);
  }
}

}  // namespace

RankingBatch AgreeOnRanking(const RankingEmbeddings& embeddings, const RankingOptions& options,
                            const RankingIds& ids, ProcessGroup& group, CallSite site) {
  const ErrorContext what{.op = kOp, .site = site};
  if (!embeddings.queries.defined()) {
    group.Abort(absl::InvalidArgumentError("queries are undefined"));
    ThrowInvalidArgument("queries are undefined", what);
  }
  const Row mine = Describe(embeddings, options, ids);
  const RankTable table(mine, group, embeddings.queries.value().device(), kOp, site);
  if (const int rank = table.NotZero(kProblem); rank >= 0) {
    ThrowInvalidArgument(absl::StrCat("rank ", rank, " ", TextOf(table, rank)), what);
  }
  CheckSame(table, what);
  RankingBatch batch;
  batch.columns = mine[kColumns];
  batch.pairs = table.Sum(kPairs);
  batch.negatives = table.Sum(kNegatives);
  batch.own_pairs = mine[kPairs];
  for (int r = 0; r < group.rank(); ++r) batch.first_pair += table.at(r, kPairs);
  batch.query_ids = AgreeOnIds(table, kQueryIds, kNames[0], what);
  batch.document_ids = AgreeOnIds(table, kDocumentIds, kNames[1], what);
  batch.negative_ids = AgreeOnIds(table, kNegativeIds, kNames[2], what);
  CheckEnough(batch, options.symmetric, what);
  return batch;
}

}  // namespace sherd::internal
