#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/io/crc32c.h"
#include "sherd/runtime/io/mapped_file.h"
#include "sherd/runtime/io/safetensors.h"
#include "sherd/shard/internal/state_folder.h"
#include "sherd/shard/internal/state_manifest.h"
#include "sherd/shard/internal/state_tensors.h"
#include "sherd/shard/state.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;
using internal::Manifest;
using internal::ManifestTensor;
using internal::StateParts;
using internal::StatePiece;
using internal::StateTensor;

ErrorContext What() { return {.op = "load state"}; }

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string name = (fs::path(folder) / internal::kManifestName).string();
  const absl::StatusOr<MappedFile> file = MappedFile::Open("manifest", name);
  if (!file.ok()) return file.status();
  return internal::ParseManifest(name, file->text());
}

// How model and state differ.
struct Differences {
  LoadReport report;
  std::vector<std::string> other;  // shapes and dtypes

  absl::Status ToStatus(const std::string& folder, bool strict) const {
    std::vector<std::string> texts;
    const auto add = [&](const char* what, const std::vector<std::string>& names) {
      if (!names.empty()) texts.push_back(absl::StrCat(what, ": ", absl::StrJoin(names, ", ")));
    };
    if (strict) {
      add("missing in the state", report.missing);
      add("unexpected in the state", report.unexpected);
    }
    add("different", other);
    if (texts.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("state ", folder, " does not fit the model; ", absl::StrJoin(texts, "; ")));
  }
};

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

// The manifest's tensor of a part, or null.
const ManifestTensor* Find(const Manifest& manifest, const StateTensor& tensor) {
  const auto parameter = manifest.parameters.find(tensor.parameter.name());
  if (parameter == manifest.parameters.end()) return nullptr;
  const auto found = parameter->second.tensors.find(tensor.name);
  return found != parameter->second.tensors.end() ? &found->second : nullptr;
}

Differences Compare(const Manifest& manifest, const StateParts& parts, bool with_optimizer) {
  Differences differences;
  std::set<std::pair<std::string, std::string>> wanted;
  for (const StateTensor& tensor : parts.tensors) {
    wanted.emplace(tensor.parameter.name(), tensor.name);
    const ManifestTensor* const saved = Find(manifest, tensor);
    if (saved == nullptr) {
      differences.report.missing.push_back(tensor.Describe());
      continue;
    }
    const std::vector<int64_t>& shape = manifest.parameters.at(tensor.parameter.name()).shape;
    const std::span<const int64_t> extents = tensor.parameter.shape().extents();
    const bool same_shape = std::equal(shape.begin(), shape.end(), extents.begin(), extents.end());
    if (same_shape && saved->dtype == tensor.local.dtype()) continue;
    differences.other.push_back(
        absl::StrCat(tensor.Describe(), " is ", std::string(NameOf(tensor.local.dtype())), " ",
                     tensor.parameter.shape().ToString(), " here and ",
                     std::string(NameOf(saved->dtype)), " ", ShapeText(shape), " in the state"));
  }
  for (const internal::StateCount& count : parts.counts) {
    wanted.emplace(count.parameter.name(), count.name);
    const auto found = manifest.parameters.find(count.parameter.name());
    if (found != manifest.parameters.end() && found->second.counts.contains(count.name)) continue;
    differences.report.missing.push_back(absl::StrCat(count.name, " of ", count.parameter.name()));
  }
  for (const auto& [name, parameter] : manifest.parameters) {
    for (const auto& [key, tensor] : parameter.tensors) {
      if (wanted.contains({name, key}) || (!with_optimizer && key != internal::kValue)) continue;
      differences.report.unexpected.push_back(
          key == internal::kValue ? name : absl::StrCat(key, " of ", name));
    }
    for (const auto& [key, count] : parameter.counts) {
      if (wanted.contains({name, key}) || !with_optimizer) continue;
      differences.report.unexpected.push_back(absl::StrCat(key, " of ", name));
    }
  }
  return differences;
}

// The ranks' files of one state, opened when they are needed.
class PieceFiles {
 public:
  explicit PieceFiles(std::string folder) : folder_(std::move(folder)) {}

  // The bytes of a piece. Errors: those of SafetensorsFile::Open; kInvalidArgument if the file has
  // something else than the manifest says.
  absl::StatusOr<std::span<const uint8_t>> Bytes(const StateTensor& tensor, const StatePiece& piece,
                                                 DType dtype) {
    auto [at, added] = files_.try_emplace(piece.rank);
    const std::string name = (fs::path(folder_) / internal::PieceFileName(piece.rank)).string();
    if (added) {
      absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(name);
      if (!file.ok()) {
        files_.erase(at);
        return file.status();
      }
      at->second = std::make_unique<SafetensorsFile>(*std::move(file));
    }
    const SafetensorsEntry* const entry = at->second->Find(tensor.Key());
    if (entry == nullptr || entry->type() != dtype || entry->numel() != piece.count) {
      return absl::InvalidArgumentError(
          absl::StrCat("file ", name, " has no tensor '", tensor.Key(), "' of ", piece.count, " ",
                       std::string(NameOf(dtype)), ", which the manifest says it has"));
    }
    return at->second->Bytes(*entry);
  }
  std::string NameOfPiece(const StatePiece& piece) const {
    return (fs::path(folder_) / internal::PieceFileName(piece.rank)).string();
  }

 private:
  const std::string folder_;
  std::map<int, std::unique_ptr<SafetensorsFile>> files_;
};

// Bytes that this rank needs of one piece, and where they go.
struct Part {
  std::span<const uint8_t> from;
  size_t tensor = 0;
  int64_t at = 0;  // the first element of the local tensor
};

// Checks the blocks that hold bytes [begin, end) of a piece.
absl::Status CheckBlocks(std::span<const uint8_t> bytes, const StatePiece& piece, int64_t begin,
                         int64_t end, const std::string& what) {
  for (int64_t block = begin / internal::kBlockBytes; block * internal::kBlockBytes < end;
       ++block) {
    const auto first = static_cast<size_t>(block * internal::kBlockBytes);
    const auto size = std::min(bytes.size() - first, size_t{internal::kBlockBytes});
    if (Crc32c(bytes.subspan(first, size)) == piece.crc32c[static_cast<size_t>(block)]) continue;
    return absl::DataLossError(
        absl::StrCat(what, " is damaged: the checksum of its block ", block, " is wrong"));
  }
  return absl::OkStatus();
}

// Finds and checks all that this rank needs; changes nothing.
absl::StatusOr<std::vector<Part>> FindParts(const Manifest& manifest, const StateParts& parts,
                                            PieceFiles& files) {
  std::vector<Part> found;
  for (size_t t = 0; t < parts.tensors.size(); ++t) {
    const StateTensor& tensor = parts.tensors[t];
    const ManifestTensor* const saved = Find(manifest, tensor);
    const int64_t begin = tensor.begin, end = tensor.begin + tensor.local.numel();
    if (saved == nullptr || begin == end) continue;
    const int64_t size = SizeOf(saved->dtype);
    // Pieces are in order: the first that ends behind `begin`.
    auto piece =
        std::partition_point(saved->pieces.begin(), saved->pieces.end(),
                             [&](const StatePiece& p) { return p.begin + p.count <= begin; });
    for (; piece != saved->pieces.end() && piece->begin < end; ++piece) {
      const auto bytes = files.Bytes(tensor, *piece, saved->dtype);
      if (!bytes.ok()) return bytes.status();
      const int64_t from = std::max(begin, piece->begin);
      const int64_t to = std::min(end, piece->begin + piece->count);
      const int64_t first = (from - piece->begin) * size, last = (to - piece->begin) * size;
      const std::string what =
          absl::StrCat("tensor '", tensor.Key(), "' of file ", files.NameOfPiece(*piece));
      if (absl::Status good = CheckBlocks(*bytes, *piece, first, last, what); !good.ok()) {
        return good;
      }
      found.push_back(
          {bytes->subspan(static_cast<size_t>(first), static_cast<size_t>(last - first)), t,
           from - begin});
    }
  }
  return found;
}

void Apply(const Manifest& manifest, const StateParts& parts, const std::vector<Part>& found,
           TrainingState& state) {
  // Whoever writes raises the version, on ranks that own nothing of a parameter too.
  for (const StateTensor& tensor : parts.tensors) {
    if (tensor.name == internal::kValue && Find(manifest, tensor) != nullptr) {
      tensor.parameter.MutableLocal();
    }
  }
  for (const Part& part : found) {
    const Tensor& to = parts.tensors[part.tensor].local;
    auto* const bytes = static_cast<uint8_t*>(to.raw()) + part.at * SizeOf(to.dtype());
    to.device().CopyFromHost(bytes, part.from.data(), static_cast<int64_t>(part.from.size()));
  }
  for (const internal::StateCount& count : parts.counts) {
    const auto parameter = manifest.parameters.find(count.parameter.name());
    if (parameter == manifest.parameters.end()) continue;
    const auto saved = parameter->second.counts.find(count.name);
    if (saved != parameter->second.counts.end()) *count.count = saved->second;
  }
  if (state.scaler != nullptr && manifest.scaler) state.scaler->Restore(*manifest.scaler);
  state.step = manifest.step;
  state.entries = manifest.entries;
}

// Everything that may fail on one rank alone, before anything is changed.
struct Prepared {
  Manifest manifest;
  StateParts parts;
  LoadReport report;
  std::vector<Part> found;
  std::unique_ptr<PieceFiles> files;  // what `found` points into
};

absl::StatusOr<Prepared> Prepare(const std::string& folder, const TrainingState& state,
                                 const LoadOptions& options) {
  absl::StatusOr<Manifest> manifest = ReadManifest(folder);
  if (!manifest.ok()) return manifest.status();
  absl::StatusOr<StateParts> parts = internal::PartsOf(state);
  if (!parts.ok()) return parts.status();
  Differences differences = Compare(*manifest, *parts, state.optimizer != nullptr);
  if (options.strict && state.scaler != nullptr && !manifest->scaler) {
    differences.report.missing.emplace_back("the loss scaler");
  }
  if (absl::Status fits = differences.ToStatus(folder, options.strict); !fits.ok()) return fits;
  Prepared prepared{*std::move(manifest),
                    *std::move(parts),
                    std::move(differences.report),
                    {},
                    std::make_unique<PieceFiles>(folder)};
  if (state.scaler != nullptr && prepared.manifest.scaler) {
    try {
      LossScaler(state.scaler->options()).Restore(*prepared.manifest.scaler);
    } catch (const Error& error) {
      return absl::InvalidArgumentError(absl::StrCat("state ", folder, ": ", error.message()));
    }
  }
  absl::StatusOr<std::vector<Part>> found =
      FindParts(prepared.manifest, prepared.parts, *prepared.files);
  if (!found.ok()) return found.status();
  prepared.found = *std::move(found);
  return prepared;
}

}  // namespace

absl::StatusOr<std::optional<std::string>> LatestState(const std::string& root) {
  const absl::StatusOr<std::map<int64_t, std::string>> states = internal::StatesIn(root);
  if (!states.ok()) return states.status();
  if (states->empty()) return std::nullopt;
  return states->rbegin()->second;
}

absl::StatusOr<LoadReport> LoadState(const std::string& folder, TrainingState& state,
                                     ProcessGroup& group, const LoadOptions& options) {
  absl::StatusOr<Prepared> prepared = Prepare(folder, state, options);
  if (absl::Status agreed = AgreeOn(group, prepared.status(), What()); !agreed.ok()) return agreed;
  Apply(prepared->manifest, prepared->parts, prepared->found, state);
  return std::move(prepared->report);
}

}  // namespace sherd
