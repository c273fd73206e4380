#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "llm/models/model_config.h"
#include "llm/models/pretrained.h"
#include "sherd/runtime/io/safetensors_folder.h"
#include "sherd/runtime/io/safetensors_index.h"
#include "sherd/shard/fully_shard.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace llm {

// The folders that tests/golden/make_models.py writes.
inline const std::vector<std::string>& Kinds() {
  static const std::vector<std::string> kinds = {
      "llama", "llama_classify", "llama_embed",   "smollm2",  "mistral",       "qwen2",
      "qwen3", "gpt2",           "gpt2_classify", "bert_mlm", "bert_classify", "bert_embed"};
  return kinds;
}

inline std::string FolderOf(const std::string& kind) {
  return std::string(SHERD_GOLDEN_MODELS) + "/" + kind;
}

// An empty folder of the running test.
inline std::string EmptyFolder(const std::string& name) {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string of = test->name();
  std::replace(of.begin(), of.end(), '/', '_');
  const std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) /
                                       "sherd_models" / test->test_suite_name() / of / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder.parent_path());
  return folder.string();
}

inline std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Golden results are those of evaluation.
inline ModelConfig WithoutDropout(ModelConfig config) {
  if (auto* const gpt2 = std::get_if<Gpt2Config>(&config.sizes)) {
    gpt2->embedding_dropout = gpt2->attention_dropout = gpt2->residual_dropout = 0.0;
  }
  if (auto* const bert = std::get_if<BertConfig>(&config.sizes)) {
    bert->dropout = bert->attention_dropout = bert->classifier_dropout = 0.0;
  }
  return config;
}

inline ModelConfig ConfigOfKind(const std::string& kind, const ConfigOptions& options = {}) {
  const auto config = ReadModelConfig(FolderOf(kind), options);
  EXPECT_TRUE(config.ok()) << config.status();
  return WithoutDropout(*config);
}

// Bottom-up, with gradients that are sums over ranks.
inline void ShardAll(TextModel& model, const sherd::Mesh& mesh) {
  const sherd::FullyShardOptions sums = {.scale = sherd::ScaleBy::kCaller};
  for (sherd::Module* layer : model.layers()) sherd::FullyShard(*layer, mesh, sums);
  sherd::FullyShard(model, mesh, sums);
}

// The bytes of every tensor of a folder.
inline std::map<std::string, std::vector<uint8_t>> TensorsOf(const std::string& folder) {
  const auto index = sherd::SafetensorsIndex::Open(folder);
  EXPECT_TRUE(index.ok()) << index.status();
  std::map<std::string, std::vector<uint8_t>> tensors;
  if (!index.ok()) return tensors;
  for (const auto& [name, place] : index->tensors()) {
    tensors[name].assign(place.bytes().begin(), place.bytes().end());
  }
  return tensors;
}

// The files of a folder but golden.safetensors.
inline std::vector<std::string> FilesOf(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    names.push_back(file.path().filename().string());
  }
  std::erase(names, "golden.safetensors");
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace llm
