// What needs the whole library, so that it is replayed and not fuzzed further.
#include "absl/strings/match.h"
#include "data/documents.h"
#include "llm/dataset.h"
#include "llm/models/model_config.h"
#include "tests/fuzz/input_files.h"
#include "tests/fuzz/targets.h"

namespace sherd::fuzz {
namespace {

constexpr int64_t kSeq = 4;

bool Between(int64_t id, int64_t vocabulary) { return id >= 0 && id < vocabulary; }

// Every row of both parts, as a loader reads it.
void CheckDataset(const llm::Dataset& dataset) {
  for (const data::Samples* part : {&dataset.train(), &dataset.validation()}) {
    for (int64_t i = 0; i < part->size(); ++i) {
      Require(part->length(i) > 0 && part->length(i) <= kSeq, "a row is too long");
      const data::PackedRow row = part->Row(i);
      Require(row.tokens.size() == row.labels.size(), "a row has labels of another number");
      for (const int64_t id : row.tokens) Require(Between(id, dataset.vocabulary()), "a token");
      for (const int64_t id : row.labels) {
        Require(id == data::kIgnored || Between(id, dataset.vocabulary()), "a label");
      }
    }
  }
}

}  // namespace

void PlayDataset(std::string_view input) {
  if (input.size() < 2) return;
  const char* const ends[] = {"x.bin", "x.jsonl", "x.txt"};
  const auto kind = static_cast<uint8_t>(input[0]) % 3;
  InputFiles files;
  llm::Options options;
  options.data = {files.Add(ends[kind], input.substr(2))};
  // Around the number of bytes.
  options.vocabulary = kind == 2 ? 0 : 128 + static_cast<uint8_t>(input[1]);
  options.seq = kSeq;
  if (const auto dataset = llm::Dataset::Open(options); dataset.ok()) CheckDataset(*dataset);
}

void PlayConfig(std::string_view input) {
  const std::string name = "folder/config.json";
  const absl::StatusOr<llm::ModelConfig> config = llm::ParseModelConfig(name, input);
  if (!config.ok()) {
    Require(absl::StrContains(config.status().message(), name), "an error names no file");
    return;
  }
  Require(!config->model_type().empty(), "a model of no type");
  const std::string text = llm::ConfigText(*config, DType::kF32);
  const absl::StatusOr<llm::ModelConfig> again = llm::ParseModelConfig(name, text);
  Require(again.ok(), "a config that was read cannot be read when it is written: " + text);
  Require(llm::ConfigText(*again, DType::kF32) == text, "a config changes when it is written");
}

}  // namespace sherd::fuzz
