#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "contrastive/options.h"
#include "contrastive/pairs.h"
#include "data/wordpiece_tokenizer.h"
#include "llm/models/model_config.h"
#include "llm/models/text_model.h"
#include "sherd/runtime/core/device.h"

namespace contrastive {

// A text encoder before it has weights: sizes, tokenizer, pooling. Embeddings have length 1.
struct Encoder {
  llm::ModelConfig config;
  data::WordPieceTokenizer tokenizer;
  int64_t max_tokens = 0;     // of a text, those around it counted; what is longer is cut
  int64_t chosen_token = -1;  // whose first place in a text is pooled; -1: as the config's pooling

  const llm::HeadOptions& head() const;
};

// The encoder that the options name or describe; the vocabulary of a new one is that of `pairs`.
//
// Of --init: config.json of a BERT encoder, its tokenizer, and where they are there modules.json,
// the pooling's config.json and sentence_bert_config.json.
// Errors: those of ReadModelConfig and WordPieceTokenizer; kInvalidArgument naming file and field
// of
//   what is not supported, a --seq that the model has no positions for, a vocabulary that is larger
//   than the model's, a --pooling token that is none.
absl::StatusOr<Encoder> MakeEncoder(const Options& options, const PairSet& pairs);

// The tokens of each text of a file. Errors: kInvalidArgument naming the file and the text that has
// not the chosen token, or no token at all.
absl::StatusOr<std::vector<std::vector<int64_t>>> Tokenize(const Encoder& encoder,
                                                           const std::string& file,
                                                           std::span<const std::string> texts);

// What the model reads of some of the texts, padded to the longest. REQUIRES: one at least.
llm::TextInput InputOf(const Encoder& encoder, std::span<const std::vector<int64_t>> texts,
                       std::span<const int64_t> which, const sherd::Device& device);

// Writes to `folder`, which has the weights, what makes it one of sentence-transformers; tokenizer
// files are those of --init, or a new one's. Errors: what the system says, naming the file.
absl::Status WriteEncoderFiles(const Options& options, const Encoder& encoder,
                               const std::string& folder);

}  // namespace contrastive
