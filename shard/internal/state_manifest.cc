#include "sherd/shard/internal/state_manifest.h"

#include <algorithm>
#include <array>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "sherd/runtime/base/json_text.h"
#include "sherd/runtime/io/json.h"

namespace sherd::internal {
namespace {

constexpr char kFormat[] = "sherd-state";
constexpr std::array kDTypes = {DType::kF32, DType::kF64, DType::kBF16,
                                DType::kF16, DType::kI32, DType::kI64};

std::string PieceJson(const StatePiece& piece) {
  return absl::StrCat("{\"rank\":", piece.rank, ",\"begin\":", piece.begin,
                      ",\"count\":", piece.count, ",\"crc32c\":[", absl::StrJoin(piece.crc32c, ","),
                      "]}");
}

std::string ParameterJson(const std::string& name, const ManifestParameter& parameter) {
  std::vector<std::string> tensors, counts;
  for (const auto& [key, tensor] : parameter.tensors) {
    std::vector<std::string> pieces;
    for (const StatePiece& piece : tensor.pieces) pieces.push_back(PieceJson(piece));
    tensors.push_back(absl::StrCat(JsonQuoted(key), ":{\"dtype\":\"",
                                   std::string(NameOf(tensor.dtype)), "\",\"pieces\":[",
                                   absl::StrJoin(pieces, ","), "]}"));
  }
  for (const auto& [key, count] : parameter.counts) {
    counts.push_back(absl::StrCat(JsonQuoted(key), ":", count));
  }
  return absl::StrCat(JsonQuoted(name), ":{\"shape\":[", absl::StrJoin(parameter.shape, ","),
                      "],\"counts\":{", absl::StrJoin(counts, ","), "},\"tensors\":{",
                      absl::StrJoin(tensors, ","), "}}");
}

// Reads typed values at keys; the first that is wrong leaves its reason, after which everything
// else is empty.
class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  bool ok() const { return status_.ok(); }
  const absl::Status& status() const { return status_; }
  void Fail(const std::string& where, const std::string& why) {
    if (!ok()) return;
    status_ = absl::InvalidArgumentError(absl::StrCat("manifest ", file_, ": ", where, " ", why));
  }

  const JsonObject& Object(const Json& json, const std::string& where) {
    return As<JsonObject>(json, where, "an object");
  }
  template <typename T>
  const T& At(const JsonObject& object, const std::string& key, const std::string& where,
              const char* kind) {
    const auto found = object.find(key);
    if (found == object.end()) {
      Fail(where, absl::StrCat("has no \"", key, "\""));
      return Empty<T>();
    }
    return As<T>(found->second, absl::StrCat(where, ".", key), kind);
  }
  int64_t Count(const JsonObject& object, const std::string& key, const std::string& where) {
    const int64_t count = At<int64_t>(object, key, where, "an integer");
    if (count < 0) Fail(absl::StrCat(where, ".", key), absl::StrCat("is ", count));
    return count;
  }
  // Integers from 0 to `most`.
  std::vector<int64_t> Counts(const JsonObject& object, const std::string& key,
                              const std::string& where, int64_t most) {
    std::vector<int64_t> counts;
    for (const Json& element : At<JsonArray>(object, key, where, "an array")) {
      const int64_t count = As<int64_t>(element, absl::StrCat(where, ".", key), "integers");
      if (count < 0 || count > most) {
        Fail(absl::StrCat(where, ".", key), absl::StrCat("has ", count));
      }
      counts.push_back(count);
    }
    return counts;
  }

 private:
  template <typename T>
  const T& As(const Json& json, const std::string& where, const char* kind) {
    const T* const value = std::get_if<T>(&json.value);
    if (value != nullptr) return *value;
    Fail(where, absl::StrCat("is ", json.kind(), ", not ", kind));
    return Empty<T>();
  }
  template <typename T>
  static const T& Empty() {
    static const T empty{};
    return empty;
  }

  const std::string& file_;
  absl::Status status_;
};

StatePiece PieceOf(const Json& json, const std::string& where, int64_t ranks, Reader& reader) {
  const JsonObject& object = reader.Object(json, where);
  StatePiece piece;
  const int64_t rank = reader.Count(object, "rank", where);
  if (rank >= ranks) reader.Fail(where, absl::StrCat("is of rank ", rank, " of ", ranks));
  piece.rank = static_cast<int>(rank);
  piece.begin = reader.Count(object, "begin", where);
  piece.count = reader.Count(object, "count", where);
  for (int64_t crc : reader.Counts(object, "crc32c", where, UINT32_MAX)) {
    piece.crc32c.push_back(static_cast<uint32_t>(crc));
  }
  return piece;
}

ManifestTensor TensorOf(const Json& json, const std::string& where, int64_t numel, int64_t ranks,
                        Reader& reader) {
  const JsonObject& object = reader.Object(json, where);
  ManifestTensor tensor;
  const std::string& dtype = reader.At<std::string>(object, "dtype", where, "a string");
  const auto* const found =
      std::find_if(kDTypes.begin(), kDTypes.end(), [&](DType d) { return NameOf(d) == dtype; });
  if (found == kDTypes.end()) {
    reader.Fail(where, absl::StrCat("has unknown dtype '", dtype, "'"));
    return tensor;
  }
  tensor.dtype = *found;
  int64_t due = 0;
  for (const Json& element : reader.At<JsonArray>(object, "pieces", where, "an array")) {
    const std::string of = absl::StrCat(where, ".pieces[", tensor.pieces.size(), "]");
    StatePiece piece = PieceOf(element, of, ranks, reader);
    if (!reader.ok()) return tensor;
    if (piece.begin != due || piece.count < 1 || piece.count > numel - due) {
      reader.Fail(of, absl::StrCat("has ", piece.count, " elements from ", piece.begin,
                                   " on, where ", numel - due, " from ", due, " on are due"));
      return tensor;
    }
    const int64_t bytes = piece.count * SizeOf(tensor.dtype);
    const int64_t blocks = (bytes + kBlockBytes - 1) / kBlockBytes;
    if (static_cast<int64_t>(piece.crc32c.size()) != blocks) {
      reader.Fail(of, absl::StrCat("has ", piece.crc32c.size(), " checksums of ", blocks));
    }
    due += piece.count;
    tensor.pieces.push_back(std::move(piece));
  }
  if (due != numel) reader.Fail(where, absl::StrCat("has pieces of ", due, " of ", numel));
  return tensor;
}

ManifestParameter ParameterOf(const Json& json, const std::string& where, int64_t ranks,
                              Reader& reader) {
  const JsonObject& object = reader.Object(json, where);
  ManifestParameter parameter;
  // Below this, bytes of any dtype fit 64 bits.
  constexpr int64_t kMostElements = INT64_MAX / 16;
  parameter.shape = reader.Counts(object, "shape", where, kMostElements);
  int64_t numel = 1;
  for (int64_t extent : parameter.shape) {
    if (__builtin_mul_overflow(numel, extent, &numel) || numel > kMostElements) {
      reader.Fail(where, "has a shape that is too large");
      return parameter;
    }
  }
  for (const auto& [key, count] : reader.At<JsonObject>(object, "counts", where, "an object")) {
    const auto* const value = std::get_if<int64_t>(&count.value);
    if (value == nullptr) reader.Fail(absl::StrCat(where, ".counts.", key), "is no integer");
    parameter.counts[key] = value != nullptr ? *value : 0;
  }
  for (const auto& [key, tensor] : reader.At<JsonObject>(object, "tensors", where, "an object")) {
    parameter.tensors[key] = TensorOf(tensor, absl::StrCat(where, ".", key), numel, ranks, reader);
  }
  if (!parameter.tensors.contains("value")) reader.Fail(where, "has no value");
  return parameter;
}

std::optional<LossScalerState> ScalerOf(const JsonObject& object, Reader& reader) {
  const auto found = object.find("scaler");
  if (found == object.end()) return std::nullopt;
  const JsonObject& scaler = reader.Object(found->second, "scaler");
  LossScalerState state;
  const auto scale = scaler.find("scale");
  if (scale == scaler.end()) {
    reader.Fail("scaler", "has no \"scale\"");
  } else if (const auto* const real = std::get_if<double>(&scale->second.value)) {
    state.scale = *real;
  } else if (const auto* const integer = std::get_if<int64_t>(&scale->second.value)) {
    state.scale = static_cast<double>(*integer);
  } else {
    reader.Fail("scaler.scale", "is no number");
  }
  state.good_steps = reader.Count(scaler, "good_steps", "scaler");
  return state;
}

}  // namespace

int64_t ManifestParameter::numel() const {
  int64_t numel = 1;
  for (int64_t extent : shape) numel *= extent;
  return numel;
}

std::string PieceFileName(int rank) { return absl::StrFormat("rank-%05d.safetensors", rank); }

std::string ManifestJson(const Manifest& manifest) {
  std::vector<std::string> parameters, entries;
  for (const auto& [name, parameter] : manifest.parameters) {
    parameters.push_back(ParameterJson(name, parameter));
  }
  for (const auto& [key, value] : manifest.entries) {
    entries.push_back(absl::StrCat(JsonQuoted(key), ":", JsonQuoted(value)));
  }
  std::string scaler;
  if (manifest.scaler) {
    scaler = absl::StrFormat(",\n\"scaler\":{\"scale\":%.17g,\"good_steps\":%d}",
                             manifest.scaler->scale, manifest.scaler->good_steps);
  }
  return absl::StrCat("{\"format\":\"", kFormat, "\",\"format_version\":", kFormatVersion,
                      ",\"step\":", manifest.step, ",\"ranks\":", manifest.ranks,
                      ",\"block_bytes\":", kBlockBytes,
                      ",\n\"written_by\":", JsonQuoted(manifest.written_by), scaler,
                      ",\n\"entries\":{", absl::StrJoin(entries, ",\n"), "},\n\"parameters\":{\n",
                      absl::StrJoin(parameters, ",\n"), "}}\n");
}

absl::StatusOr<Manifest> ParseManifest(const std::string& file, std::string_view json) {
  const absl::StatusOr<Json> parsed = ParseJson(json);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest ", file, ": ", std::string(parsed.status().message())));
  }
  Reader reader(file);
  const JsonObject& object = reader.Object(*parsed, "the manifest");
  const std::string& format = reader.At<std::string>(object, "format", "the manifest", "a string");
  if (format != kFormat) reader.Fail("the manifest", absl::StrCat("has format '", format, "'"));
  const int64_t version = reader.Count(object, "format_version", "the manifest");
  if (reader.ok() && version != kFormatVersion) {
    return absl::UnimplementedError(absl::StrCat("manifest ", file, " has format version ", version,
                                                 "; this library reads version ", kFormatVersion));
  }
  Manifest manifest;
  manifest.step = reader.Count(object, "step", "the manifest");
  const int64_t ranks = reader.Count(object, "ranks", "the manifest");
  if (ranks < 1 || ranks > INT32_MAX) reader.Fail("ranks", absl::StrCat("is ", ranks));
  manifest.ranks = static_cast<int>(ranks);
  if (reader.Count(object, "block_bytes", "the manifest") != kBlockBytes) {
    reader.Fail("block_bytes", absl::StrCat("is not ", kBlockBytes));
  }
  manifest.scaler = ScalerOf(object, reader);
  for (const auto& [key, value] :
       reader.At<JsonObject>(object, "entries", "the manifest", "an object")) {
    const auto* const text = std::get_if<std::string>(&value.value);
    if (text == nullptr) reader.Fail(absl::StrCat("entries.", key), "is no string");
    manifest.entries[key] = text != nullptr ? *text : "";
  }
  for (const auto& [name, parameter] :
       reader.At<JsonObject>(object, "parameters", "the manifest", "an object")) {
    manifest.parameters[name] =
        ParameterOf(parameter, absl::StrCat("parameter '", name, "'"), ranks, reader);
    if (!reader.ok()) break;
  }
  if (!reader.ok()) return reader.status();
  return manifest;
}

}  // namespace sherd::internal
