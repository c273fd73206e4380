#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "llm/models/text_model.h"

namespace contrastive {

// What a sentence-transformers folder says beside a model's config.json.
struct FolderPooling {
  std::optional<llm::Pooling> pooling;  // unset: it is a plain Hugging Face folder
  std::optional<int64_t> max_tokens;    // of a text
};

// Reads modules.json, the config.json of the pooling that it names, and sentence_bert_config.json.
//
// Errors: what the system says of a file; kInvalidArgument naming file and field of what is
//   malformed, of a module other than Transformer, Pooling and Normalize, of a transformer that is
//   not in the folder itself, of no pooling or several, of one whose path leaves the folder, and of
//   another one than the mean, the first or the last token.
absl::StatusOr<FolderPooling> ReadFolderPooling(const std::string& folder);

// The contents, by name, of the files that say it again, with embeddings of `width` numbers that
// are normalized.
std::map<std::string, std::string> FilesOfPooling(const FolderPooling& pooling, int64_t width);

}  // namespace contrastive
