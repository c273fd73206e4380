#include "sherd/shard/stream_weights.h"

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/core/random.h"
#include "sherd/runtime/kernels/elementwise.h"

namespace sherd {
namespace {

constexpr int kRoot = 0;

ErrorContext What() { return {.op = "StreamWeights"}; }

// Elements [begin, end) of a flat parameter, which `rank` sends.
struct Part {
  int rank = 0;
  int64_t begin = 0;
  int64_t end = 0;
};

// What a rank says of a parameter.
struct Piece {
  uint64_t fingerprint = 0;  // of name, dtype and shape
  int64_t begin = 0;
  int64_t elems = 0;
};

uint64_t FingerprintOf(const Parameter& p) {
  uint64_t hash = Mix64(HashName(p.name()), static_cast<uint64_t>(p.dtype()));
  for (int64_t extent : p.shape().extents()) hash = Mix64(hash, static_cast<uint64_t>(extent));
  return hash;
}

absl::Status CheckMemory(const std::vector<Parameter>& parameters) {
  for (const Parameter& p : parameters) {
    if (p.local().defined() && p.version() > 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("parameter '", p.name(), "' has no values yet: initialise or load it first"));
  }
  return absl::OkStatus();
}

// The pieces of all ranks: those of rank r from r * parameters.size() on. COLLECTIVE.
std::vector<Piece> GatherPieces(const std::vector<Parameter>& parameters, ProcessGroup& group) {
  std::vector<Piece> mine;
  for (const Parameter& p : parameters) {
    mine.push_back({FingerprintOf(p), p.local_offset(), p.local().numel()});
  }
  std::vector<Piece> all(mine.size() * static_cast<size_t>(group.size()));
  group.AllGather(mine.data(), all.data(), static_cast<int64_t>(mine.size() * sizeof(Piece)),
                  What());
  return all;
}

// Who sends which elements of parameter `index`: each element once, the lowest rank that has it.
// Errors: kFailedPrecondition naming the parameter.
absl::StatusOr<std::vector<Part>> PartsOf(const Parameter& p, size_t index, size_t count,
                                          const std::vector<Piece>& pieces) {
  std::vector<Part> owned;
  for (size_t r = 0; r * count < pieces.size(); ++r) {
    const Piece& piece = pieces[r * count + index];
    if (piece.fingerprint != pieces[index].fingerprint) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", r, " has another parameter than '", p.name(), "' of rank 0"));
    }
    if (piece.elems > 0) {
      owned.push_back({static_cast<int>(r), piece.begin, piece.begin + piece.elems});
    }
  }
  std::stable_sort(owned.begin(), owned.end(),
                   [](const Part& a, const Part& b) { return a.begin < b.begin; });
  std::vector<Part> parts;
  int64_t end = 0;
  for (const Part& part : owned) {
    if (part.begin > end) break;
    if (part.end <= end) continue;
    parts.push_back({part.rank, end, part.end});
    end = part.end;
  }
  if (end == p.numel()) return parts;
  return absl::FailedPreconditionError(
      absl::StrCat("no rank of the group owns element ", end, " of parameter '", p.name(), "'"));
}

// Puts the whole parameter together; undefined on ranks that do not get it. COLLECTIVE.
Tensor Collect(const Parameter& p, const std::vector<Part>& parts, ProcessGroup& group,
               const StreamOptions& options) {
  const Tensor& local = p.local();
  const bool gets = options.to_all_ranks || group.rank() == kRoot;
  if (group.size() == 1) return local.Reshape(p.shape());
  const int64_t step = std::max<int64_t>(1, options.buffer_bytes / SizeOf(p.dtype()));
  const Tensor memory =
      Tensor::Empty(local.device(), p.dtype(), {gets ? p.numel() : std::min(step, p.numel())},
                    MemoryCategory::kStaging);
  for (const Part& part : parts) {
    for (int64_t begin = part.begin; begin < part.end; begin += step) {
      const int64_t end = std::min(begin + step, part.end);
      const Tensor to = gets ? memory.Slice(0, begin, end) : memory.Slice(0, 0, end - begin);
      if (part.rank == group.rank()) {
        kernels::Copy(local.Slice(0, begin - p.local_offset(), end - p.local_offset()), to);
      }
      // Where rank 0 alone wants it, its own part stays.
      if (part.rank == kRoot && !options.to_all_ranks) continue;
      group.Broadcast(to.raw(), to.bytes(), part.rank, What());
    }
  }
  return gets ? memory.Reshape(p.shape()) : Tensor();
}

absl::Status HandOver(const Parameter& p, const Tensor& value, const WeightSink& sink) {
  absl::Status given;
  try {
    given = sink(p, value);
  } catch (const std::exception& error) {
    given = absl::InternalError(error.what());
  }
  if (given.ok()) return given;
  return absl::Status(given.code(),
                      absl::StrCat("parameter '", p.name(), "': ", std::string(given.message())));
}

}  // namespace

absl::Status StreamWeights(const Module& model, ProcessGroup& group, const WeightSink& sink,
                           const StreamOptions& options) {
  const std::vector<Parameter> parameters = model.parameters();
  // With other numbers of them the exchange of pieces would differ in size.
  const std::vector<std::string> counts =
      GatherTexts(group, absl::StrCat(parameters.size()), What());
  absl::Status good = CheckMemory(parameters);
  for (size_t r = 0; r < counts.size() && good.ok(); ++r) {
    if (counts[r] == counts[0]) continue;
    good = absl::FailedPreconditionError(
        absl::StrCat("rank ", r, " has ", counts[r], " parameters, rank 0 has ", counts[0]));
  }
  if (good = AgreeOn(group, good, What()); !good.ok()) return good;
  const std::vector<Piece> pieces = GatherPieces(parameters, group);
  std::vector<std::vector<Part>> parts;
  for (size_t i = 0; i < parameters.size(); ++i) {
    auto found = PartsOf(parameters[i], i, parameters.size(), pieces);
    // The ranks read the same pieces; the name is each rank's own.
    if (!found.ok() && good.ok()) good = found.status();
    parts.push_back(found.ok() ? *std::move(found) : std::vector<Part>());
  }
  if (good = AgreeOn(group, good, What()); !good.ok()) return good;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor value = Collect(parameters[i], parts[i], group, options);
    const absl::Status given = value.defined() && (options.to_all_ranks || group.rank() == kRoot)
                                   ? HandOver(parameters[i], value, sink)
                                   : absl::OkStatus();
    if (absl::Status all = AgreeOn(group, given, What()); !all.ok()) return all;
  }
  return absl::OkStatus();
}

}  // namespace sherd
