#include "sherd/runtime/comm/internal/wire_cast.h"

#include <algorithm>
#include <cstring>

#include "sherd/runtime/comm/internal/element_kinds.h"
#include "sherd/runtime/comm/internal/rank_sum.h"

namespace sherd::internal {
namespace {

constexpr int64_t kBlock = 1024;

// A block of any dtype.
union Block {
  double wide[kBlock];
  char bytes[kBlock * sizeof(double)];
};

}  // namespace

void CastElements(const void* in, DType from, void* out, DType to, int64_t elems) {
  if (from == to) {
    if (in != out && elems > 0) std::memcpy(out, in, static_cast<size_t>(elems * SizeOf(to)));
    return;
  }
  WithFloatKind(from, [&](auto from_kind) {
    WithFloatKind(to, [&](auto to_kind) {
      using From = decltype(from_kind);
      using To = decltype(to_kind);
      const auto* source = static_cast<const typename From::Element*>(in);
      auto* target = static_cast<typename To::Element*>(out);
      for (int64_t i = 0; i < elems; ++i) target[i] = To::Store(From::Load(source[i]));
    });
  });
}

void PassThroughWire(const void* full, void* out, int64_t elems, const WireTypes& types, bool add) {
  if (types.full == types.wire) {
    if (out == full) return;
    return SumInRankOrder({&full, 1}, types.wire, {out, types.shard, add}, elems);
  }
  Block wire;
  for (int64_t begin = 0; begin < elems; begin += kBlock) {
    const int64_t n = std::min(kBlock, elems - begin);
    CastElements(static_cast<const char*>(full) + begin * SizeOf(types.full), types.full,
                 wire.bytes, types.wire, n);
    const void* input = wire.bytes;
    char* to = static_cast<char*>(out) + begin * SizeOf(types.shard);
    SumInRankOrder({&input, 1}, types.wire, {to, types.shard, add}, n);
  }
}

void RoundThroughWire(void* data, int64_t elems, DType dtype, DType wire) {
  if (dtype == wire) return;
  PassThroughWire(data, data, elems, {dtype, wire, dtype}, /*add=*/false);
}

}  // namespace sherd::internal
