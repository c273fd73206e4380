#pragma once

#include <string>

#include "absl/status/status.h"

namespace llm {

// Whether a folder has a tokenizer.json, or vocab.json and merges.txt.
bool HasTokenizer(const std::string& folder);

// Copies a folder's tokenizer, and what else it says of texts, to another: the small files that a
// model's export does not have. Errors: what the system says, naming the file.
absl::Status CopyTokenizer(const std::string& from, const std::string& to);

}  // namespace llm
