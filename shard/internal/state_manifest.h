#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "sherd/runtime/core/dtype.h"
#include "sherd/shard/loss_scaler.h"

namespace sherd::internal {

inline constexpr char kManifestName[] = "manifest.json";
inline constexpr int64_t kFormatVersion = 1;
// A checksum is of so many bytes, the last one of a piece of fewer.
inline constexpr int64_t kBlockBytes = int64_t{4} << 20;

// Elements [begin, begin + count) of a flat tensor, in the file of a rank.
struct StatePiece {
  int rank = 0;
  int64_t begin = 0;
  int64_t count = 0;
  std::vector<uint32_t> crc32c;  // of each block
};

struct ManifestTensor {
  DType dtype = DType::kF32;
  std::vector<StatePiece> pieces;  // side by side from the first element to the last
};

struct ManifestParameter {
  std::vector<int64_t> shape;
  std::map<std::string, ManifestTensor> tensors;  // "value" and an optimizer's
  std::map<std::string, int64_t> counts;

  int64_t numel() const;
};

// manifest.json: what is in a state and where.
struct Manifest {
  int64_t step = 0;
  int ranks = 1;
  std::string written_by;  // for people: not read back
  std::map<std::string, ManifestParameter> parameters;
  std::optional<LossScalerState> scaler;
  std::map<std::string, std::string> entries;
};

// The name of a rank's file in a state: "rank-00003.safetensors".
std::string PieceFileName(int rank);

std::string ManifestJson(const Manifest& manifest);

// The reverse. Errors: kInvalidArgument naming `file` and the key, parameter or piece that is
//   missing, of a wrong type, out of range or contradicts another; kUnimplemented for a newer
//   format.
absl::StatusOr<Manifest> ParseManifest(const std::string& file, std::string_view json);

}  // namespace sherd::internal
