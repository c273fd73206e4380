#include "sherd/shard/ranking_loss.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "sherd/autograd/loss/cross_entropy.h"
#include "sherd/autograd/ops/activation.h"
#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/indexing.h"
#include "sherd/autograd/ops/linear.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/ops/similarity.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/context.h"
#include "sherd/shard/gather_rows.h"
#include "sherd/shard/internal/ranking_checks.h"

namespace sherd {
namespace {

using internal::RankingBatch;
using Ids = std::vector<int64_t>;

// Ids of all ranks; empty where there are none.
Ids GatherIds(bool there, const Tensor& ids, const Device& device, ProcessGroup& group,
              CallSite site) {
  if (!there) return {};
  const Tensor own =
      ids.defined() ? ids.Reshape({ids.numel()}) : Tensor::Zeros(device, DType::kI64, {0});
  return GatherRowsOf(own, group, site).ToHost<int64_t>();
}

// Which columns are no wrong answer to this rank's queries.
class Duplicates {
 public:
  // REQUIRES: ids of documents where there are ids of negatives that matter.
  Duplicates(const RankingBatch& batch, Ids queries, Ids documents, Ids negatives)
      : batch_(batch),
        queries_(std::move(queries)),
        documents_(std::move(documents)),
        negatives_(std::move(negatives)) {
    for (int64_t g = 0; g < batch_.pairs; ++g) {
      if (queries_.empty()) break;
      pairs_of_query_[At(queries_, g)].push_back(g);
    }
    for (size_t g = 0; g < documents_.size(); ++g) {
      columns_of_[documents_[g]].push_back(static_cast<int64_t>(g));
    }
    for (size_t m = 0; m < negatives_.size(); ++m) {
      columns_of_[negatives_[m]].push_back(batch_.pairs + static_cast<int64_t>(m));
    }
    for (int64_t i = 0; i < batch_.own_pairs; ++i) MarkRow(i);
  }

  // 1 where nothing is to be left out, of the first `columns` columns; undefined: nowhere.
  Tensor Mask(const Device& device, int64_t columns) const {
    std::vector<int32_t> keep(static_cast<size_t>(batch_.own_pairs * columns), 1);
    bool any = false;
    for (const auto& [row, column] : marked_) {
      if (column >= columns) continue;
      keep[static_cast<size_t>(row * columns + column)] = 0;
      any = true;
    }
    if (!any) return Tensor();
    return Tensor::FromHost<int32_t>(device, keep, {batch_.own_pairs, columns});
  }

 private:
  static int64_t At(const Ids& ids, int64_t i) { return ids[static_cast<size_t>(i)]; }

  void MarkRow(int64_t row) {
    const int64_t self = batch_.first_pair + row;
    Ids own = {self};
    if (!queries_.empty()) own = pairs_of_query_.at(At(queries_, self));
    std::set<int64_t> columns(own.begin(), own.end());
    for (int64_t g : own) {
      if (documents_.empty()) break;
      const Ids& same = columns_of_.at(At(documents_, g));
      columns.insert(same.begin(), same.end());
    }
    columns.erase(self);
    for (int64_t column : columns) marked_.emplace_back(row, column);
  }

  const RankingBatch& batch_;
  const Ids queries_, documents_, negatives_;
  std::map<int64_t, Ids> pairs_of_query_;
  std::map<int64_t, Ids> columns_of_;  // by the id of the document or negative
  std::vector<std::pair<int64_t, int64_t>> marked_;
};

// What the scores of one rank are computed from; f32 or f64.
struct Operands {
  Variable queries, documents;          // own
  Variable all_queries, all_documents;  // all_queries if symmetric; then negatives behind documents
  Variable log_scale;
};

Variable Widen(const Variable& x) {
  return x.dtype() == DType::kBF16 || x.dtype() == DType::kF16 ? Cast(x, DType::kF32) : x;
}

Operands GatherOperands(const RankingEmbeddings& e, const RankingBatch& batch, bool symmetric,
                        ProcessGroup& group, CallSite site) {
  Operands o;
  o.queries = Widen(e.queries);
  o.documents = Widen(e.documents);
  o.all_documents = AllGatherRows(o.documents, group, site).rows;
  if (batch.negatives > 0) {
    const Variable none(
        Tensor::Zeros(o.queries.value().device(), o.queries.dtype(), Shape{0, batch.columns}));
    const Variable own = e.negatives.defined() ? Widen(e.negatives) : none;
    const Variable negatives = AllGatherRows(own, group, site).rows;
    o.all_documents = Concat(std::array{o.all_documents, negatives}, 0, site);
  }
  if (symmetric) o.all_queries = AllGatherRows(o.queries, group, site).rows;
  if (e.log_scale.defined()) {
    const Variable scale = Reshape(e.log_scale, {1}, site);
    o.log_scale = scale.dtype() == o.queries.dtype() ? scale : Cast(scale, o.queries.dtype(), site);
  }
  return o;
}

// The loss of own rows among all columns, in one direction.
class Direction {
 public:
  Direction(const RankingOptions& options, const Variable& log_scale, Tensor mask, Tensor targets,
            CallSite site)
      : options_(options),
        log_scale_(log_scale),
        mask_(std::move(mask)),
        targets_(std::move(targets)),
        site_(site) {}

  Variable Loss(const Variable& own, const Variable& all, int64_t columns) const {
    const Variable rows = Scaled(Prepared(own, columns));
    Variable scores = Matmul(rows, Prepared(all, columns), {.transpose_b = true}, site_);
    if (mask_.defined()) {
      const Tensor never = Tensor::Empty(own.value().device(), scores.dtype(), {1});
      kernels::Fill(never, -std::numeric_limits<double>::infinity());
      scores = Where(Variable(mask_), scores, Variable(never), site_);
    }
    return CrossEntropy(scores, targets_, {}, site_).value;
  }

 private:
  Variable Prepared(const Variable& x, int64_t columns) const {
    const Variable part = columns == x.dim(1) ? x : Slice(x, 1, 0, columns, site_);
    return options_.normalize ? L2Normalize(part, internal::kLeastLength, site_) : part;
  }
  Variable Scaled(const Variable& x) const {
    if (!log_scale_.defined()) return Scale(x, 1.0 / options_.temperature, site_);
    return Mul(x, Exp(log_scale_, site_), site_);
  }

  const RankingOptions& options_;
  const Variable& log_scale_;
  const Tensor mask_;
  const Tensor targets_;
  const CallSite site_;
};

// The pair of each own row, among those of all ranks.
Tensor TargetsOf(const RankingBatch& batch, const Device& device) {
  std::vector<int64_t> targets;
  for (int64_t i = 0; i < batch.own_pairs; ++i) targets.push_back(batch.first_pair + i);
  return Tensor::FromHost<int64_t>(device, targets, {batch.own_pairs});
}

}  // namespace

LossSum RankingLoss(const RankingEmbeddings& embeddings, ProcessGroup& group,
                    const RankingOptions& options, const RankingIds& ids, CallSite site) {
  const RankingBatch batch = internal::AgreeOnRanking(embeddings, options, ids, group, site);
  const Device device = embeddings.queries.value().device();
  const Duplicates duplicates(
      batch, GatherIds(batch.query_ids, ids.queries, device, group, site),
      GatherIds(batch.document_ids, ids.documents, device, group, site),
      GatherIds(batch.negative_ids && batch.document_ids, ids.negatives, device, group, site));
  const Operands o = GatherOperands(embeddings, batch, options.symmetric, group, site);
  const Tensor targets = TargetsOf(batch, device);
  const Direction to_documents(
      options, o.log_scale, duplicates.Mask(device, batch.pairs + batch.negatives), targets, site);
  std::vector<MatryoshkaColumns> parts = options.matryoshka;
  if (parts.empty()) parts = {{batch.columns, 1.0}};
  Variable sum;
  for (const MatryoshkaColumns& part : parts) {
    Variable loss = to_documents.Loss(o.queries, o.all_documents, part.columns);
    if (options.symmetric) {
      const Direction to_queries(options, o.log_scale, duplicates.Mask(device, batch.pairs),
                                 targets, site);
      const Variable back = to_queries.Loss(o.documents, o.all_queries, part.columns);
      loss = Scale(Add(loss, back, site), 0.5, site);
    }
    if (part.weight != 1.0) loss = Scale(loss, part.weight, site);
    sum = sum.defined() ? Add(sum, loss, site) : loss;
  }
  return {sum, batch.own_pairs};
}

LossSum RankingLoss(const RankingEmbeddings& embeddings, const Mesh& mesh,
                    const RankingOptions& options, const RankingIds& ids, CallSite site) {
  return RankingLoss(embeddings, ShardContext::Of(mesh)->control(), options, ids, site);
}

}  // namespace sherd
