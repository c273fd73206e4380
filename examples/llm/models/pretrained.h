#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "llm/models/model_config.h"
#include "llm/models/text_model.h"
#include "sherd/runtime/comm/process_group.h"
#include "sherd/runtime/core/device.h"
#include "sherd/runtime/core/dtype.h"

namespace llm {

// A model without values: see Initialize and LoadWeights.
// Errors: thrown, as the constructors say.
std::unique_ptr<TextModel> MakeModel(const ModelConfig& config, const sherd::Device& device);

struct LoadWeightsOptions {
  // Whether the head may differ from the folder's: one that the folder has not keeps its values,
  // and what the folder has of another one is passed over.
  bool new_head = false;
};

// Names of tensors in the folder's spelling.
struct LoadWeightsReport {
  std::vector<std::string> missing;     // of the head, so left as they were
  std::vector<std::string> unexpected;  // of another head, so not read
};

// Sets the parameters of `model`, sharded or not, to the tensors of a Hugging Face folder.
//
// Names are the folder's (TextModel::Weights), with the base's prefix or without. Tensors may be
// F32, F64, BF16 or F16, whatever the model's dtype. Buffers that older folders carry, such as
// "rotary_emb.inv_freq", are passed over; a tied weight that a folder has twice has to be the same.
// COLLECTIVE over `group`; a model that is not sharded, or a new head, has to be initialised first.
// Cost: each rank reads the headers and the range of each tensor that it owns, rank 0 also second
//   copies of tied weights; memory of a buffer.
// Errors, the same on all ranks, with nothing changed: those of SafetensorsIndex::Open;
//   kInvalidArgument that lists all that is missing, unexpected, of another shape or no float;
//   kFailedPrecondition for a parameter without memory.
absl::StatusOr<LoadWeightsReport> LoadWeights(const std::string& folder, const TextModel& model,
                                              sherd::ProcessGroup& group,
                                              const LoadWeightsOptions& options = {});

struct SavePretrainedOptions {
  std::optional<sherd::DType> dtype = {};  // of the tensors; unset: that of the parameters
  int64_t max_file_bytes = 5'000'000'000;  // of tensors in one file
};

// Writes `model`, which `config` describes, as a Hugging Face folder: config.json and safetensors,
// a tied weight once. `transformers` opens it.
//
// COLLECTIVE over `group`, between steps; rank 0 writes, and config.json comes last. Returns the
// names of the files. Cost: as StreamWeights, with one parameter on rank 0 at a time.
// Errors, the same on all ranks: those of SafetensorsFolderWriter; kInvalidArgument for a dtype
// that
//   is no float; kFailedPrecondition for a parameter without values.
absl::StatusOr<std::vector<std::string>> SavePretrained(const std::string& folder,
                                                        const ModelConfig& config,
                                                        const TextModel& model,
                                                        sherd::ProcessGroup& group,
                                                        const SavePretrainedOptions& options = {});

}  // namespace llm
