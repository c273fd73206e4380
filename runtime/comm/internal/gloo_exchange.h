#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "sherd/runtime/comm/internal/gloo_link.h"
#include "sherd/runtime/comm/process_group.h"

namespace sherd::internal {

// The smallest piece a message is cut into.
inline constexpr int64_t kMinPieceBytes = 64 * 1024;

// Receives posted at once for each peer, and pieces cast ahead. Two keep the wire busy while a
// piece is summed; more would fill the connection with one fork's data while another's headers wait
// behind it.
inline constexpr int64_t kDepth = 2;

// A part of a buffer, in bytes.
struct Region {
  int64_t begin = 0;
  int64_t bytes = 0;
};

inline int64_t Pieces(int64_t bytes, int64_t piece) { return (bytes + piece - 1) / piece; }

// One collective of a Gloo group while it runs: the exchange of headers, then the transfers.
//
// Ranks here are those of the channel's group; only what goes to the wire, and what messages name,
// is a rank of the link.
class Exchange {
 public:
  Exchange(GlooLink& link, Channel& channel, const CollectiveCall& call)
      : link_(link),
        channel_(channel),
        call_(call),
        size_(static_cast<int>(channel.members.size())),
        rank_(channel.rank) {}

  // Tells every peer what this rank calls and learns what they call. Returns when all have called.
  // Errors: kFailedPrecondition naming two calls that differ.
  void Agree();

  // Sends region rank() of `data` to all and receives the other regions from their ranks.
  void Gather(char* data, const std::vector<Region>& regions);

  // Sends all of `data` from rank `root` to the others.
  void SendAll(char* data, int64_t bytes, int root);

  // Those below are the reductions', with the dtypes of the call. Regions are in bytes of what
  // travels, and mean the same elements of buffers of another dtype.

  // Sums the ranks' `full` over region rank() into `out`, a buffer that begins where that region
  // does; the other regions go to their ranks.
  void Reduce(const char* full, const std::vector<Region>& regions, char* out, bool add);

  // Sends all of `data` to everyone and sums what comes: the fewest rounds, for small buffers.
  void ReduceDirectly(char* data, int64_t bytes);

  // As Gather, for `data` that travels in another dtype. This rank's own region is rounded as the
  // others see it.
  void GatherCast(char* data, const std::vector<Region>& regions);

 private:
  class CastSends;
  using Buffers = std::vector<std::unique_ptr<WireBuffer>>;  // one for each rank

  uint64_t Slot(WireKind kind, int64_t piece = 0) const { return WireSlot(kind, channel_, piece); }
  int WorldRank(int rank) const { return channel_.members[static_cast<size_t>(rank)]; }
  std::vector<int> Peers() const;
  int64_t StagedPiece(int64_t blocks) const;
  int64_t CastPiece(int64_t blocks, const std::vector<Region>& regions) const;
  bool casts() const { return call_.types.full != call_.types.wire; }
  int64_t WireElems(int64_t bytes) const { return bytes / SizeOf(call_.types.wire); }
  const char* FullAt(const char* full, int64_t wire_offset) const {
    return full + WireElems(wire_offset) * SizeOf(call_.types.full);
  }
  void WaitFor(int peer, WireBuffer& buffer);
  Buffers SendRegions(const char* data, const std::vector<Region>& regions, int64_t piece,
                      WireKind kind);
  void AwaitSends(Buffers& outgoing, const std::vector<Region>& regions, int64_t piece);
  void Spread(char* data, const std::vector<Region>& regions, Region own);

  GlooLink& link_;
  Channel& channel_;
  const CollectiveCall& call_;
  const int size_;
  const int rank_;
};

}  // namespace sherd::internal
