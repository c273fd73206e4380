#include "sherd/checkpoint/policy.h"

#include "absl/strings/str_format.h"

namespace sherd {

KeepPolicy KeepNothing() { return {}; }

KeepPolicy KeepKinds(std::initializer_list<OpKind> kinds) {
  uint32_t mask = 0;
  for (OpKind kind : kinds) mask |= 1u << static_cast<uint32_t>(kind);
  return [mask](const OpInfo& op) { return (mask >> static_cast<uint32_t>(op.kind) & 1u) != 0; };
}

// Attention that draws random numbers is of the random kind; its FLOPs tell.
KeepPolicy KeepMatmuls() {
  return [](const OpInfo& op) {
    return op.kind == OpKind::kMatmul || op.kind == OpKind::kAttention || op.flops > 0.0;
  };
}

KeepPolicy KeepAll() {
  return [](const OpInfo&) { return true; };
}

std::string CheckpointStats::ToString() const {
  return absl::StrFormat(
      "checkpoints: %d calls, %d recomputes; of %d ops %d kept, %d repeated (%.4g GFLOP); kept "
      "%.1f MiB, at most %.1f MiB; offloaded %.1f MiB",
      calls, recomputes, ops, kept_ops, repeated_ops, repeated_flops / 1e9,
      static_cast<double>(kept_bytes) / (1 << 20), static_cast<double>(peak_kept_bytes) / (1 << 20),
      static_cast<double>(offloaded_bytes) / (1 << 20));
}

}  // namespace sherd
