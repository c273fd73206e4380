#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "llm/models/elements.h"
#include "llm/models/pretrained.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/io/safetensors_index.h"

namespace llm {
namespace {

using sherd::Parameter;
using sherd::SafetensorsIndex;

// Elements converted at a time.
constexpr int64_t kChunk = int64_t{1} << 18;

sherd::ErrorContext What() { return {.op = "load weights"}; }

// A part of a parameter and where the folder has it.
struct Source {
  Parameter parameter;
  WeightPart part;
  int64_t begin = 0;  // its first element in the flat parameter
  int64_t elems = 0;
  SafetensorsIndex::Place place;
};

// What a folder has that no parameter is made of: buffers of older versions.
bool IsBuffer(std::string_view name) {
  constexpr std::string_view kEnds[] = {".rotary_emb.inv_freq", "embeddings.position_ids",
                                        ".attn.bias", ".attn.masked_bias"};
  return std::any_of(std::begin(kEnds), std::end(kEnds),
                     [&](std::string_view end) { return name.ends_with(end); });
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// Compares the tensors of a folder with what a model is made of.
class Comparison {
 public:
  // With `copies`, second copies of tied weights are read and compared: one rank is enough.
  Comparison(const TextModel& model, const SafetensorsIndex& index,
             const LoadWeightsOptions& options, bool copies)
      : model_(model),
        index_(index),
        options_(options),
        copies_(copies),
        prefix_(model.base_prefix()) {
    const auto& tensors = index.tensors();
    has_prefix_ = std::any_of(tensors.begin(), tensors.end(), [&](const auto& tensor) {
      return std::string_view(tensor.first).starts_with(prefix_);
    });
  }

  // Finds everything, or says what does not fit.
  absl::Status Run() {
    for (const NamedWeight& weight : model_.Weights()) AddWeight(weight);
    for (const auto& [name, same] : model_.TiedNames()) AddTied(InFolder(name), InFolder(same));
    for (const auto& [name, place] : index_.tensors()) {
      if (known_.contains(name) || IsBuffer(name)) continue;
      (options_.new_head && IsOfHead(name) ? report.unexpected : unexpected_).push_back(name);
    }
    std::vector<std::string> texts;
    const auto add = [&](const char* what, const std::vector<std::string>& names) {
      if (!names.empty()) texts.push_back(absl::StrCat(what, ": ", absl::StrJoin(names, ", ")));
    };
    add("missing", missing_);
    add("unexpected", unexpected_);
    add("different", different_);
    if (texts.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "folder ", index_.folder(), " does not fit the model; ", absl::StrJoin(texts, "; ")));
  }

  std::vector<Source> sources;
  LoadWeightsReport report;

 private:
  std::string InFolder(const std::string& name) const {
    if (has_prefix_ || !std::string_view(name).starts_with(prefix_)) return name;
    return name.substr(prefix_.size());
  }
  // Names of the folder's: those outside of the base, and an encoder's pooler.
  bool IsOfHead(std::string_view name) const {
    const bool in_base = name.starts_with(prefix_);
    if (in_base) name.remove_prefix(prefix_.size());
    return name.starts_with("pooler.") || (has_prefix_ && !in_base) || name == "score.weight" ||
           name == "lm_head.weight";
  }
  void AddWeight(const NamedWeight& weight) {
    int64_t begin = 0;
    for (const WeightPart& part : weight.parts) {
      const std::string name = InFolder(part.name);
      known_.insert(name);
      Source source{weight.parameter, part, begin, 1, {}};
      for (int64_t extent : part.shape) source.elems *= extent;
      begin += source.elems;
      const SafetensorsIndex::Place* const place = index_.Find(name);
      if (place == nullptr) {
        (options_.new_head && IsOfHead(name) ? report.missing : missing_).push_back(name);
        continue;
      }
      const sherd::SafetensorsEntry& entry = *place->entry;
      if (entry.shape != part.shape || !entry.type() || !IsFloating(*entry.type())) {
        different_.push_back(absl::StrCat(name, " is ", entry.dtype, " ", ShapeText(entry.shape),
                                          " in the folder and ", ShapeText(part.shape),
                                          " in the model"));
        continue;
      }
      source.place = *place;
      sources.push_back(std::move(source));
    }
  }
  // A second copy of a tied weight has to be one.
  void AddTied(const std::string& name, const std::string& same) {
    known_.insert(name);
    const SafetensorsIndex::Place* const copy = index_.Find(name);
    const SafetensorsIndex::Place* const weight = index_.Find(same);
    if (!copies_ || copy == nullptr || weight == nullptr) return;
    if (copy->entry->shape == weight->entry->shape && copy->entry->dtype == weight->entry->dtype &&
        std::ranges::equal(copy->bytes(), weight->bytes())) {
      return;
    }
    different_.push_back(absl::StrCat(name, " is not equal to ", same,
                                      ", which the config ties it to (tie_word_embeddings)"));
  }

  const TextModel& model_;
  const SafetensorsIndex& index_;
  const LoadWeightsOptions& options_;
  const bool copies_;
  const std::string_view prefix_;
  bool has_prefix_ = false;
  std::set<std::string, std::less<>> known_;
  std::vector<std::string> missing_, unexpected_, different_;
};

// Fills what this rank owns of one part.
void Fill(const Source& source) {
  const sherd::Tensor to = source.parameter.MutableLocal();
  const int64_t offset = source.parameter.local_offset();
  const int64_t size = SizeOf(to.dtype());
  const int64_t begin = std::max(source.begin, offset);
  const int64_t end = std::min(source.begin + source.elems, offset + to.numel());
  const std::vector<int64_t>& shape = source.part.shape;
  const Transposition transposition =
      source.part.transposed ? Transposition{shape[0], shape[1]} : Transposition{};
  const Elements from{*source.place.entry->type(), source.place.bytes().data()};
  std::vector<uint8_t> chunk;
  for (int64_t first = begin; first < end; first += kChunk) {
    const int64_t last = std::min(end, first + kChunk);
    chunk.resize(static_cast<size_t>((last - first) * size));
    CopyElements(from, transposition, first - source.begin, last - source.begin, to.dtype(),
                 chunk.data());
    Upload(chunk, to, first - offset);
  }
}

absl::Status CheckMemory(const TextModel& model) {
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.local().defined()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "parameter '", parameter.name(), "' has no memory yet: shard or initialise it first"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadWeightsReport> LoadWeights(const std::string& folder, const TextModel& model,
                                              sherd::ProcessGroup& group,
                                              const LoadWeightsOptions& options) {
  const absl::StatusOr<SafetensorsIndex> index = SafetensorsIndex::Open(folder);
  absl::Status good = index.ok() ? CheckMemory(model) : index.status();
  std::optional<Comparison> comparison;
  if (good.ok()) good = comparison.emplace(model, *index, options, group.rank() == 0).Run();
  if (good = sherd::AgreeOn(group, good, What()); !good.ok()) return good;
  for (const Source& source : comparison->sources) Fill(source);
  return std::move(comparison->report);
}

}  // namespace llm
