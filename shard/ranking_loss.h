#pragma once

#include <cstdint>
#include <vector>

#include "sherd/autograd/loss/loss_sum.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"
#include "sherd/runtime/comm/mesh.h"
#include "sherd/runtime/comm/process_group.h"

namespace sherd {

// The first columns of the embeddings, as embeddings of their own.
struct MatryoshkaColumns {
  int64_t columns = 0;
  double weight = 1.0;  // of their loss in the sum; positive
};

// Options are the same on all ranks, which compare them in each call.
struct RankingOptions {
  // Scores are divided by it; positive. Not used where `log_scale` is given. 0.05 is the usual
  // scale of 20.
  double temperature = 0.05;
  // Whether a score is the cosine, or the plain product.
  bool normalize = true;
  // Also ranks the queries for each document: the mean of both directions. Costs another gather and
  // another [own pairs, all pairs] of scores.
  bool symmetric = false;
  // Empty: all columns once. Otherwise the weighted sum of the losses of these; each costs scores
  // of its own. Gathered once.
  std::vector<MatryoshkaColumns> matryoshka = {};
  // Whether values are looked at: embeddings for NaN, infinity and rows without a direction, a
  // learnable scale for the same value everywhere. Costs one copy of the rank's own to the host.
  bool check_values = true;
};

// What one rank has embedded. Query i and document i are a pair.
//
// Shapes: queries and documents [pairs, C], negatives [any, C], with none on a rank that has none;
//   log_scale [1].
// Dtypes: any float, the same everywhere; 16 bits are widened to f32 before they are sent, so that
//   gradients are summed in f32 and rounded once.
struct RankingEmbeddings {
  Variable queries;
  Variable documents;
  // Hard negatives, any number for each query: a wrong document for every query of all ranks.
  // Undefined: none.
  Variable negatives;
  // Learnable temperature: scores are multiplied by its exponential. A parameter, say; the same
  // value on all ranks. Undefined: RankingOptions::temperature.
  Variable log_scale;
};

// Which embeddings are of the same thing, so that nothing is a wrong answer to itself. i64, one for
// each row; undefined: not known, then on all ranks that have rows.
//
// For a query are left out: other documents with the id of one of its own, which are that of its
// pair and those of pairs with the same query id; the other documents of those pairs; and negatives
// with such an id.
struct RankingIds {
  Tensor queries;
  Tensor documents;
  Tensor negatives;
};

// Multiple negatives ranking (InfoNCE): for each query the cross-entropy of its own document among
// all documents of all ranks.
//
// The sum over this rank's pairs, as if the batches of all ranks were one: each rank computes the
// scores of its own queries with the documents of all ranks (and with `symmetric` of its own
// documents with all queries), so no rank idles, and the sum of the ranks' losses and all gradients
// are those of the joined batch. Columns are in the order of the joined batch: documents of all
// ranks in rank order, then negatives of all ranks in rank order. `items` are this rank's pairs; a
// window divides by those of all ranks. Give its LossTerm `collective`, since a rank without pairs
// takes part. A bare backward has to divide itself: the sum over the ranks is not a mean.
//
// COLLECTIVE; see [Note: collectives on the tape] in gather_rows.h.
// Memory: scores [own pairs, all documents] and their gradient for each of `matryoshka`, once more
//   if ids mask something (with an i32 for each); embeddings of all ranks.
// Cost: one exchange of 13 numbers a rank; then the gathers of documents, of negatives and ids
//   where there are some, and of queries if symmetric, each with its gradient.
// Errors, on all ranks, naming the rank and the row: kInvalidArgument for queries and documents of
//   different counts, embeddings of other widths or dtypes, NaN or rows that are shorter than 1e-12
//   (in the first columns of `matryoshka`, too), a temperature, its learnable form or a weight that
//   is not positive, ids that are missing on one rank or of another number, options
//   that differ; or if there is nothing to tell a document from: no pair at all, one document and
//   no negatives, or one query in the symmetric form. The group goes on to be usable.
// Source: van den Oord et al. 2018, "Representation Learning with Contrastive Predictive Coding";
//   Henderson et al. 2017, "Efficient Natural Language Response Suggestion"; Radford et al. 2021
//   for the learnable scale; Kusupati et al. 2022, "Matryoshka Representation Learning".
LossSum RankingLoss(const RankingEmbeddings& embeddings, ProcessGroup& group,
                    const RankingOptions& options = {}, const RankingIds& ids = {},
                    CallSite site = CallSite::Here());
LossSum RankingLoss(const RankingEmbeddings& embeddings, const Mesh& mesh,
                    const RankingOptions& options = {}, const RankingIds& ids = {},
                    CallSite site = CallSite::Here());

}  // namespace sherd
