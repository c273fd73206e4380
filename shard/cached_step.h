#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "sherd/autograd/module.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// How often a unit's gradients are reduced in one step.
enum class CachedReduction : uint8_t {
  // In the backward of each chunk. Memory: one unit's gradients beside the shards.
  kEachChunk,
  // Once for each unit, when the last chunk's backward has ended: W - 1 chunks' worth of messages
  // less, nothing behind which they hide, and the whole gradients of the model in memory from the
  // first chunk's backward on. Units that an optimizer in backward steps are reduced in the last
  // chunk's backward, in each of its calls.
  kOncePerStep
};

struct CachedStepOptions {
  CachedReduction reduction = CachedReduction::kEachChunk;
};

// Embeds a batch that is larger than memory, for a loss that needs all of it at once.
//
// [Note: a cached step] Embed runs the chunks in turn without recording them and leaves one node on
// the tape, whose results are the embeddings of all chunks. The loss on them is recorded as usual.
// Its backward gives that node the gradients of the embeddings, once; the node then takes chunk by
// chunk, the last first: forward again, recorded on a tape of its own, and backward from the
// chunk's gradients at once. So gradients are those of the whole batch, and what is held at any
// time is one chunk's record, and embeddings and scores of all.
//
//   Recording on(tape, {.seed = seed, .step = step});
//   CachedStep cached(model);
//   std::vector<Variable> e = cached.Embed(samples_of_chunks, [batch, &model](int64_t chunk) {
//     return std::vector{model(batch.queries[chunk]), model(batch.documents[chunk])};
//   });
//   window->Backward(RankingLoss({e[0], e[1]}, mesh));
//
// It is an ordinary backward: windows scale it once, units gather and reduce in it, checkpointed
// calls inside a chunk recompute in it, and mixed precision is that of the calls.
class CachedStep {
 public:
  // The embeddings of one chunk: float [rows, C] each, any number of rows. Called twice for each
  // chunk, the second time from the backward, with the same random numbers; code that counts calls
  // asks InRecompute().
  using Encode = std::function<std::vector<Variable>(int64_t chunk)>;

  // `model` is what is encoded with, sharded or not; it outlives what Embed leaves on a tape.
  explicit CachedStep(Module& model, CachedStepOptions options = {})
      : model_(model), options_(options) {}

  // Embeds one chunk for each element of `samples`, and puts their rows one after another.
  //
  // The element is the samples of the chunk's rows, as in RecordingOptions, for its random ops; if
  // all are empty, those of the Recording. Random numbers are those of the whole batch in one call:
  // each chunk counts calls from where the first began, and what comes behind counts on from where
  // it ended, on ranks without chunks too (of calls in no other module's call).
  //
  // Ranks may have different numbers of chunks, also none: for a chunk that only some have, the
  // others make the calls of units with them and add nothing (see announcer.h). Collectives of the
  // caller's own inside `encode` cannot be followed.
  // Shapes: as many results as `encode` gives, [rows of all chunks, C].
  // Ownership: `encode` is kept until the backward has run; what it captures by reference lives as
  //   long.
  // Cost: a plain step and one more forward. COLLECTIVE over the ranks of the model's mesh, and so
  //   is the backward, which runs on all ranks, those without chunks too: two small exchanges in
  //   the forward. Memory: the embeddings twice while they are put together.
  // Errors: kFailedPrecondition without a Recording, inside a checkpointed region, or in a
  //   micro-batch that only some ranks have; kInvalidArgument, on all ranks, if no rank has a
  //   chunk, or chunks or ranks give other numbers of embeddings, widths or dtypes; what `encode`
  //   throws, which ends the step on all ranks. From the backward: kFailedPrecondition "recompute
  //   differs" if a chunk has other shapes the second time; those of a backward.
  // Source: Gao et al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited
  //   Setup".
  std::vector<Variable> Embed(std::vector<std::vector<int64_t>> samples, Encode encode,
                              CallSite site = CallSite::Here());

 private:
  Module& model_;
  const CachedStepOptions options_;
};

}  // namespace sherd
