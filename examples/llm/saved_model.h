#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "llm/models/model_config.h"
#include "llm/models/text_model.h"
#include "sherd/runtime/comm/process_group.h"

namespace llm {

// A model on the disk that was not loaded yet.
struct SavedModel {
  std::string folder;
  bool state = false;  // a saved state of the trainer; otherwise a Hugging Face folder
  ModelConfig config;
  std::string tokenizer;            // the folder or file that has it; empty: none is known
  std::vector<int64_t> end_tokens;  // "eos_token_id" of the config
};

// Finds the model at `path`: a Hugging Face folder, a saved state, the folder of states, whose
// newest is taken, or the --out of a run. Errors: kNotFound if it is neither of them; those of
// ReadModelConfig; kInvalidArgument naming the
//   state whose manifest is no JSON or does not say which model it has.
absl::StatusOr<SavedModel> FindModel(const std::string& path);

// Sets the parameters of `model`, which MakeModel made of saved.config, sharded or not.
// COLLECTIVE over `group`. Errors: those of LoadWeights and LoadState.
absl::Status LoadModel(const SavedModel& saved, TextModel& model, sherd::ProcessGroup& group);

}  // namespace llm
