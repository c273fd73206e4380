#pragma once

#include "contrastive/encoder.h"
#include "contrastive/training.h"
#include "llm/models/text_model.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/shard/ranking_loss.h"

namespace contrastive {

// The embeddings of all texts of a set, on every rank: [texts, C].
//
// Ranks take as many texts each, of like lengths, without recording. COLLECTIVE, between steps.
sherd::Tensor EmbedTexts(llm::TextModel& model, const Encoder& encoder, const Data& data,
                         sherd::World& world);

// Measures the model on a set's pairs; the same on all ranks. COLLECTIVE, between steps.
HeldOut Measure(llm::TextModel& model, const Encoder& encoder, const Data& data,
                sherd::World& world, const sherd::RankingOptions& ranking);

}  // namespace contrastive
