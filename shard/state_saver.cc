
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/base/new_file.h"
#include "sherd/runtime/base/thread.h"
#include "sherd/runtime/base/utf8.h"
#include "sherd/runtime/base/version.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/io/crc32c.h"
#include "sherd/runtime/io/safetensors_writer.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/internal/state_folder.h"
#include "sherd/shard/internal/state_manifest.h"
#include "sherd/shard/internal/state_tensors.h"
#include "sherd/shard/state.h"

namespace sherd {
namespace {

namespace fs = std::filesystem;
using internal::Manifest;
using internal::StatePiece;
using internal::StateTensor;

ErrorContext What() { return {.op = "save state"}; }

// Where the elements of one tensor lie on one rank.
struct Interval {
  int64_t begin = 0;
  int64_t count = 0;
  bool operator==(const Interval&) const = default;
};

// The intervals of all ranks, [rank][tensor]. COLLECTIVE.
std::vector<std::vector<Interval>> GatherIntervals(ProcessGroup& group,
                                                   const std::vector<StateTensor>& tensors) {
  std::vector<Interval> mine;
  for (const StateTensor& tensor : tensors) mine.push_back({tensor.begin, tensor.local.numel()});
  const auto ranks = static_cast<size_t>(group.size());
  std::vector<Interval> all(ranks * mine.size());
  group.AllGather(mine.data(), all.data(), static_cast<int64_t>(mine.size() * sizeof(Interval)),
                  What());
  std::vector<std::vector<Interval>> by_rank;
  for (size_t r = 0; r < ranks; ++r) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(r * mine.size());
    by_rank.emplace_back(first, first + static_cast<std::ptrdiff_t>(mine.size()));
  }
  return by_rank;
}

// Which rank writes what: of the ranks that have the same interval of a tensor one does, in turn
// from tensor to tensor. Pieces are in the order of their elements.
std::vector<std::vector<StatePiece>> AssignPieces(
    const std::vector<std::vector<Interval>>& intervals, size_t tensors) {
  std::vector<std::vector<StatePiece>> pieces(tensors);
  for (size_t t = 0; t < tensors; ++t) {
    std::map<std::pair<int64_t, int64_t>, std::vector<int>> holders;
    for (size_t r = 0; r < intervals.size(); ++r) {
      const Interval& interval = intervals[r][t];
      if (interval.count == 0) continue;
      holders[{interval.begin, interval.count}].push_back(static_cast<int>(r));
    }
    for (const auto& [interval, ranks] : holders) {
      pieces[t].push_back({ranks[t % ranks.size()], interval.first, interval.second, {}});
    }
  }
  return pieces;
}

// OK if the pieces of every tensor follow one another from its first element to its last.
absl::Status CheckWhole(const std::vector<std::vector<StatePiece>>& pieces,
                        const std::vector<StateTensor>& tensors) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    int64_t due = 0;
    for (const StatePiece& piece : pieces[t]) {
      if (piece.begin != due) break;
      due += piece.count;
    }
    const int64_t numel = tensors[t].parameter.numel();
    if (due == numel) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("the ranks' pieces of ", tensors[t].Describe(), " leave a gap at element ",
                     due, " of ", numel));
  }
  return absl::OkStatus();
}

// What must be the same on all ranks: names, shapes and dtypes, counts, step and entries.
std::string Fingerprint(const internal::StateParts& parts, const TrainingState& state) {
  std::string text = absl::StrCat("step ", state.step);
  for (const StateTensor& tensor : parts.tensors) {
    absl::StrAppend(&text, "\n", tensor.Describe(), " ", std::string(NameOf(tensor.local.dtype())),
                    " ", tensor.parameter.shape().ToString());
  }
  for (const internal::StateCount& count : parts.counts) {
    absl::StrAppend(&text, "\n", count.name, " of ", count.parameter.name(), " = ", *count.count);
  }
  for (const auto& [key, value] : state.entries) {
    absl::StrAppend(&text, "\nentry ", key, " = ", value);
  }
  return text;
}

// The first line in which two texts differ.
std::string FirstDifference(const std::string& mine, const std::string& other) {
  const auto [a, b] = std::mismatch(mine.begin(), mine.end(), other.begin(), other.end());
  const auto line = [](const std::string& text, size_t at) {
    const size_t begin = at == 0 ? 0 : text.rfind('\n', at - 1) + 1;
    return begin >= text.size() ? std::string("nothing more")
                                : text.substr(begin, text.find('\n', at) - begin);
  };
  const auto at = static_cast<size_t>(a - mine.begin());
  return absl::StrCat("'", line(mine, at), "' and '", line(other, at), "'");
}

// Compared by checksum first, since fingerprints of large models are long. COLLECTIVE.
absl::Status CheckAlike(ProcessGroup& group, const std::string& fingerprint) {
  const uint64_t mine =
      Crc32c({reinterpret_cast<const uint8_t*>(fingerprint.data()), fingerprint.size()});
  std::vector<uint64_t> all(static_cast<size_t>(group.size()));
  group.AllGather(&mine, all.data(), sizeof(mine), What());
  if (std::all_of(all.begin(), all.end(), [&](uint64_t crc) { return crc == all[0]; })) {
    return absl::OkStatus();
  }
  const std::vector<std::string> texts = GatherTexts(group, fingerprint, What());
  for (size_t r = 1; r < texts.size(); ++r) {
    if (texts[r] == texts[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "ranks 0 and ", r, " have different states: ", FirstDifference(texts[0], texts[r])));
  }
  return absl::OkStatus();
}

absl::Status CheckState(const TrainingState& state) {
  for (const Parameter& parameter : state.model->parameters()) {
    if (parameter.version() > 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter '", parameter.name(), "' was not initialised or loaded yet"));
  }
  if (state.step < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a state of step ", state.step));
  }
  for (const auto& [key, value] : state.entries) {
    if (ValidUtf8Bytes(key) == key.size() && ValidUtf8Bytes(value) == value.size()) continue;
    return absl::InvalidArgumentError(absl::StrCat("entry '", key, "' is not UTF-8"));
  }
  return absl::OkStatus();
}

std::span<const uint8_t> BytesOf(const Tensor& tensor) {
  if (tensor.numel() == 0) return {};
  return {static_cast<const uint8_t*>(tensor.raw()), static_cast<size_t>(tensor.bytes())};
}

}  // namespace

// A save between Begin and End.
struct StateSaver::Open {
  std::string folder;                            // under its temporary name
  std::string place;                             // where it will be
  Manifest manifest;                             // without pieces
  std::vector<StateTensor> tensors;              // without elements
  std::vector<std::vector<StatePiece>> pieces;   // of each tensor
  std::vector<std::pair<size_t, Tensor>> mine;   // which tensor, and a copy of the elements
  std::vector<std::vector<uint32_t>> checksums;  // of `mine`, by the thread
  absl::Status written;                          // by the thread
  std::atomic<bool> finished = false;
  std::thread thread;

  // The file of this rank.
  absl::Status Write(int rank);
};

absl::Status StateSaver::Open::Write(int rank) {
  if (mine.empty()) return absl::OkStatus();
  std::vector<SafetensorsSpec> specs;
  for (const auto& [t, copy] : mine) {
    specs.push_back({tensors[t].Key(), copy.dtype(), {copy.numel()}});
  }
  const std::string name = (fs::path(folder) / internal::PieceFileName(rank)).string();
  absl::StatusOr<SafetensorsWriter> file =
      SafetensorsWriter::Create(name, specs, {{"format", "sherd-state-pieces"}});
  if (!file.ok()) return file.status();
  for (auto& [t, copy] : mine) {
    std::vector<uint32_t>& crcs = checksums.emplace_back();
    for (std::span<const uint8_t> rest = BytesOf(copy); !rest.empty();) {
      const auto block = rest.first(std::min(rest.size(), size_t{internal::kBlockBytes}));
      crcs.push_back(Crc32c(block));
      if (absl::Status appended = file->Append(block); !appended.ok()) return appended;
      rest = rest.subspan(block.size());
    }
    copy = Tensor();  // the memory goes as the file grows
  }
  return file->Close();
}

StateSaver::StateSaver(std::string root, ProcessGroup& group, SaveOptions options)
    : root_(std::move(root)), group_(group), options_(std::move(options)) {}

StateSaver::~StateSaver() {
  if (open_ == nullptr) return;
  if (open_->thread.joinable()) open_->thread.join();
  // The folder stays under its temporary name, where nothing takes it for a state, and goes with
  // the next save: other ranks may still write to it.
}

absl::Status StateSaver::Begin(const TrainingState& state) {
  absl::StatusOr<internal::StateParts> parts = internal::PartsOf(state);
  absl::Status good = parts.status();
  if (good.ok()) good = CheckState(state);
  if (good.ok() && open_ != nullptr) {
    good = absl::FailedPreconditionError("a save is open: call End first");
  }
  if (absl::Status agreed = AgreeOn(group_, good, What()); !agreed.ok()) return agreed;
  if (absl::Status alike = CheckAlike(group_, Fingerprint(*parts, state)); !alike.ok()) {
    return alike;
  }
  auto open = std::make_unique<Open>();
  open->tensors = std::move(parts->tensors);
  open->pieces = AssignPieces(GatherIntervals(group_, open->tensors), open->tensors.size());
  if (absl::Status whole = CheckWhole(open->pieces, open->tensors); !whole.ok()) return whole;
  open->place = (fs::path(root_) / internal::StateFolderName(state.step)).string();
  open->folder = internal::TemporaryFolderName(open->place);
  absl::Status made;
  if (group_.rank() == 0) made = internal::MakeTemporaryFolder(root_, open->folder);
  if (absl::Status agreed = AgreeOn(group_, made, What()); !agreed.ok()) return agreed;

  open->manifest.step = state.step;
  open->manifest.ranks = group_.size();
  open->manifest.written_by = options_.written_by.empty() ? DescribeBuild() : options_.written_by;
  open->manifest.entries = state.entries;
  if (state.scaler != nullptr) open->manifest.scaler = state.scaler->state();
  for (const StateTensor& tensor : open->tensors) {
    const std::span<const int64_t> extents = tensor.parameter.shape().extents();
    internal::ManifestParameter& entry = open->manifest.parameters[tensor.parameter.name()];
    entry.shape.assign(extents.begin(), extents.end());
    entry.tensors[tensor.name].dtype = tensor.local.dtype();
  }
  for (const internal::StateCount& count : parts->counts) {
    open->manifest.parameters[count.parameter.name()].counts[count.name] = *count.count;
  }
  for (size_t t = 0; t < open->tensors.size(); ++t) {
    for (const StatePiece& piece : open->pieces[t]) {
      if (piece.rank != group_.rank()) continue;
      const Tensor& local = open->tensors[t].local;
      const bool here = local.device().backend() == nullptr;
      if (!here && !host_.defined()) host_ = Device::Cpu();
      Tensor copy = Tensor::Empty(here ? local.device() : host_, local.dtype(), local.shape(),
                                  MemoryCategory::kStaging);
      if (here) {
        kernels::Copy(local, copy);
      } else if (local.numel() > 0) {
        local.device().CopyToHost(copy.raw(), local.raw(), local.bytes());
      }
      open->mine.emplace_back(t, std::move(copy));
    }
    open->tensors[t].local = Tensor();
  }
  open_ = std::move(open);
  open_->thread = StartThread(
      [open = open_.get(), rank = group_.rank()] {
        open->written = open->Write(rank);
        open->mine.clear();
        open->finished = true;
      },
      "sherd/saver");
  return absl::OkStatus();
}

bool StateSaver::done() const { return open_ == nullptr || open_->finished; }

absl::StatusOr<std::string> StateSaver::End() {
  const bool begun = open_ != nullptr;
  absl::Status written = absl::FailedPreconditionError("no save is open: call Begin first");
  if (begun) {
    open_->thread.join();
    written = open_->written;
  }
  const std::unique_ptr<Open> open = std::move(open_);
  if (absl::Status agreed = AgreeOn(group_, written, What()); !agreed.ok()) {
    if (begun && group_.rank() == 0) internal::RemoveFolder(open->folder);
    return agreed;
  }
  // The checksums, in an order that rank 0 knows.
  std::string mine;
  for (const std::vector<uint32_t>& crcs : open->checksums) {
    for (uint32_t crc : crcs) mine.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
  }
  const std::vector<std::string> all = GatherTexts(group_, mine, What());
  absl::Status published;
  if (group_.rank() == 0) {
    std::vector<size_t> at(all.size(), 0);
    for (size_t t = 0; t < open->tensors.size(); ++t) {
      const StateTensor& tensor = open->tensors[t];
      internal::ManifestTensor& entry =
          open->manifest.parameters[tensor.parameter.name()].tensors[tensor.name];
      for (StatePiece& piece : open->pieces[t]) {
        const int64_t bytes = piece.count * SizeOf(entry.dtype);
        const auto blocks =
            static_cast<size_t>((bytes + internal::kBlockBytes - 1) / internal::kBlockBytes);
        piece.crc32c.resize(blocks);
        const auto rank = static_cast<size_t>(piece.rank);
        std::memcpy(piece.crc32c.data(), all[rank].data() + at[rank], blocks * sizeof(uint32_t));
        at[rank] += blocks * sizeof(uint32_t);
        entry.pieces.push_back(std::move(piece));
      }
    }
    published = internal::PublishState(open->folder, open->place, open->manifest);
    if (published.ok()) internal::RemoveOldStates(root_, options_, open->manifest.step);
  }
  if (absl::Status agreed = AgreeOn(group_, published, What()); !agreed.ok()) return agreed;
  return open->place;
}

absl::StatusOr<std::string> StateSaver::Save(const TrainingState& state) {
  if (absl::Status begun = Begin(state); !begun.ok()) return begun;
  return End();
}

}  // namespace sherd
