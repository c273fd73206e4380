#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "llm/models/elements.h"
#include "llm/models/pretrained.h"
#include "sherd/runtime/base/new_file.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/io/safetensors_folder.h"
#include "sherd/shard/stream_weights.h"

namespace llm {
namespace {

using sherd::DType;
using sherd::Parameter;
using sherd::SafetensorsFolderWriter;
using sherd::Tensor;

// Elements converted at a time.
constexpr int64_t kChunk = int64_t{1} << 18;

sherd::ErrorContext What() { return {.op = "save pretrained"}; }

int64_t ElemsOf(const WeightPart& part) {
  int64_t elems = 1;
  for (int64_t extent : part.shape) elems *= extent;
  return elems;
}

// What rank 0 writes.
class Export {
 public:
  Export(std::string folder, const ModelConfig& config, const SavePretrainedOptions& options)
      : folder_(std::move(folder)), config_(config), options_(options) {}

  // Errors: those of SavePretrained.
  absl::Status Begin(const TextModel& model) {
    if (options_.dtype && !IsFloating(*options_.dtype)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors cannot be saved as ", std::string(sherd::NameOf(*options_.dtype))));
    }
    for (NamedWeight& weight : Named(model)) {
      weights_.emplace(weight.parameter.name(), std::move(weight));
    }
    std::vector<sherd::SafetensorsSpec> specs;
    for (const Parameter& parameter : model.parameters()) {
      const auto found = weights_.find(parameter.name());
      if (found == weights_.end()) {
        return absl::InternalError(
            absl::StrCat("parameter '", parameter.name(), "' has no name in a folder"));
      }
      dtype_ = options_.dtype.value_or(parameter.dtype());
      for (const WeightPart& part : found->second.parts) {
        specs.push_back({part.name, dtype_, part.shape});
      }
    }
    auto writer = SafetensorsFolderWriter::Create(
        folder_, std::move(specs),
        {.max_file_bytes = options_.max_file_bytes, .metadata = {{"format", "pt"}}});
    if (!writer.ok()) return writer.status();
    writer_.emplace(*std::move(writer));
    return absl::OkStatus();
  }

  absl::Status Add(const Parameter& parameter, const Tensor& value) {
    std::vector<uint8_t> memory, chunk;
    const uint8_t* bytes = OnHost(value, memory);
    const DType to = options_.dtype.value_or(value.dtype());
    for (const WeightPart& part : weights_.at(parameter.name()).parts) {
      // Here [out, in], there [in, out].
      const Transposition transposition =
          part.transposed ? Transposition{part.shape[1], part.shape[0]} : Transposition{};
      const int64_t elems = ElemsOf(part);
      for (int64_t begin = 0; begin < elems; begin += kChunk) {
        const int64_t end = std::min(elems, begin + kChunk);
        chunk.resize(static_cast<size_t>((end - begin) * SizeOf(to)));
        CopyElements({value.dtype(), bytes}, transposition, begin, end, to, chunk.data());
        if (absl::Status written = writer_->Append(chunk); !written.ok()) return written;
      }
      bytes += elems * SizeOf(value.dtype());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> End() {
    absl::StatusOr<std::vector<std::string>> names = writer_->Close();
    if (!names.ok()) return names;
    const std::string name = (std::filesystem::path(folder_) / "config.json").string();
    absl::StatusOr<sherd::NewFile> file = sherd::NewFile::Create(name);
    if (!file.ok()) return file.status();
    if (absl::Status written = file->Append(ConfigText(config_, dtype_)); !written.ok()) {
      return written;
    }
    if (absl::Status published = file->Publish(); !published.ok()) return published;
    names->emplace_back("config.json");
    return names;
  }

 private:
  // As a folder has them: a model without a head leaves out the base's prefix.
  std::vector<NamedWeight> Named(const TextModel& model) const {
    std::vector<NamedWeight> weights = model.Weights();
    if (config_.head().kind != Head::kEmbedding) return weights;
    const std::string_view prefix = model.base_prefix();
    for (NamedWeight& weight : weights) {
      for (WeightPart& part : weight.parts) {
        if (std::string_view(part.name).starts_with(prefix)) part.name.erase(0, prefix.size());
      }
    }
    return weights;
  }

  const std::string folder_;
  const ModelConfig& config_;
  const SavePretrainedOptions& options_;
  DType dtype_ = DType::kF32;
  std::map<std::string, NamedWeight> weights_;  // by the parameter's name
  std::optional<SafetensorsFolderWriter> writer_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> SavePretrained(const std::string& folder,
                                                        const ModelConfig& config,
                                                        const TextModel& model,
                                                        sherd::ProcessGroup& group,
                                                        const SavePretrainedOptions& options) {
  const bool writes = group.rank() == 0;
  Export out(folder, config, options);
  absl::Status good = writes ? out.Begin(model) : absl::OkStatus();
  if (good = sherd::AgreeOn(group, good, What()); !good.ok()) return good;
  good = sherd::StreamWeights(model, group, [&](const Parameter& parameter, const Tensor& value) {
    return out.Add(parameter, value);
  });
  if (!good.ok()) return good;
  std::vector<std::string> names;
  if (writes) {
    absl::StatusOr<std::vector<std::string>> ended = out.End();
    good = ended.status();
    if (ended.ok()) names = *std::move(ended);
  }
  if (good = sherd::AgreeOn(group, good, What()); !good.ok()) return good;
  // Names of files here have no line feed.
  std::string text;
  for (const std::string& name : names) absl::StrAppend(&text, name, "\n");
  text = sherd::GatherTexts(group, text, What())[0];
  names.clear();
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    names.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

}  // namespace llm
