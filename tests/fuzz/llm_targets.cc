// What the language model is made of and trained on.
#include <iterator>
#include <string>
#include <tuple>
#include <variant>

#include "absl/strings/match.h"
#include "data/documents.h"
#include "llm/dataset.h"
#include "llm/models/model_config.h"
#include "tests/fuzz/input_files.h"
#include "tests/fuzz/targets.h"

namespace sherd::fuzz {
namespace {

constexpr int64_t kSeq = 4;

// What a data set is of. The vocabularies lie around the number of bytes, or that of a small
// tokenizer.
struct Data {
  const char* file;
  bool tokenizer;
  bool has_vocabulary;
  int64_t least_vocabulary;
};
constexpr Data kData[] = {{"x.bin", false, true, 128},
                          {"x.jsonl", false, true, 128},
                          {"x.txt", false, false, 0},
                          {"x.txt", true, false, 0},
                          {"x.jsonl", true, true, 0}};

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

bool SameRope(const kernels::RopeScaling& a, const kernels::RopeScaling& b) {
  const auto all = [](const kernels::RopeScaling& s) {
    return std::tie(s.type, s.factor, s.original_max_position_embeddings, s.low_freq_factor,
                    s.high_freq_factor, s.beta_fast, s.beta_slow, s.attention_factor);
  };
  return all(a) == all(b);
}

bool SameSizes(const llm::LlamaConfig& a, const llm::LlamaConfig& b) {
  const auto all = [](const llm::LlamaConfig& c) {
    return std::tie(c.vocabulary, c.dim, c.layers, c.heads, c.kv_heads, c.ffn, c.positions, c.tied,
                    c.norm_eps, c.rope_theta, c.qkv_bias, c.out_bias, c.ffn_bias, c.qk_norm,
                    c.attention_dropout, c.head.kind);
  };
  return all(a) == all(b) && a.head_size() == b.head_size() && SameRope(a.rope, b.rope);
}

// The config of a Llama made here reads as the same one.
void CheckMade(const llm::LlamaConfig& llama) {
  const std::string text = llm::ConfigText(llm::ConfigOf(llama), DType::kF32);
  const auto again = llm::ParseModelConfig("made", text);
  Require(again.ok(), "a config that was made cannot be read: " + text);
  const auto* const read = std::get_if<llm::LlamaConfig>(&again->sizes);
  Require(read != nullptr && SameSizes(*read, llama),
          "a config that was made reads as another: " + text);
}

}  // namespace

void PlayDataset(std::string_view input) {
  if (input.size() < 2) return;
  const Data& kind = kData[static_cast<uint8_t>(input[0]) % std::size(kData)];
  const int64_t size = static_cast<uint8_t>(input[1]);
  input.remove_prefix(2);
  InputFiles files;
  llm::Options options;
  options.seq = kSeq;
  if (kind.tokenizer) {
    files.Add("tokenizer.json", TakeSized(input));
    options.init = files.folder();
  }
  options.data = {files.Add(kind.file, input)};
  options.vocabulary = kind.has_vocabulary ? kind.least_vocabulary + size : 0;
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
  if (const auto* const llama = std::get_if<llm::LlamaConfig>(&config->sizes)) CheckMade(*llama);
}

}  // namespace sherd::fuzz
