// The part of Exchange that sums, and that casts what travels.
#include <algorithm>
#include <optional>
#include <utility>

#include "sherd/runtime/comm/internal/gloo_exchange.h"
#include "sherd/runtime/comm/internal/rank_sum.h"
#include "sherd/runtime/comm/internal/wire_cast.h"
#include "sherd/runtime/core/allocator.h"

namespace sherd::internal {
namespace {

constexpr int64_t kStagingLimitBytes = int64_t{64} << 20;

// A block of device memory, given back at the end of a scope.
class Staging {
 public:
  Staging(const Device& device, int64_t bytes)
      : device_(device),
        bytes_(bytes),
        data_(static_cast<char*>(device.allocator().Allocate(bytes, MemoryCategory::kStaging))) {}
  ~Staging() { device_.allocator().Free(data_, bytes_, MemoryCategory::kStaging); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  char* data() const { return data_; }

 private:
  const Device& device_;
  const int64_t bytes_;
  char* const data_;
};

}  // namespace

// Smaller pieces for many ranks keep the staging of one reduction below a fixed limit.
int64_t Exchange::StagedPiece(int64_t blocks) const {
  const int64_t fitting = kStagingLimitBytes / std::max<int64_t>(blocks, 1) / 64 * 64;
  return std::min(link_.options().piece_bytes, std::max(fitting, kMinPieceBytes));
}

// The piece of a transfer that casts, of which `blocks` are in memory: none longer than a region.
int64_t Exchange::CastPiece(int64_t blocks, const std::vector<Region>& regions) const {
  int64_t most = 64;
  for (const Region& region : regions) most = std::max(most, region.bytes);
  return std::min(StagedPiece(blocks), Pieces(most, 64) * 64);
}

// The regions of `full` on their way to their ranks, cast a piece at a time: kDepth pieces of
// staging for each peer, and one for what stays here, which is rounded as if it travelled.
class Exchange::CastSends {
 public:
  CastSends(Exchange& exchange, const char* full, const std::vector<Region>& regions, int64_t piece)
      : exchange_(exchange),
        full_(full),
        regions_(regions),
        piece_(piece),
        staging_(exchange.link_.options().device, (kDepth * (exchange.size_ - 1) + 1) * piece),
        memory_(regions.size()),
        buffers_(regions.size()) {
    char* memory = staging_.data() + piece_;
    for (int peer : exchange_.Peers()) {
      const auto p = static_cast<size_t>(peer);
      memory_[p] = memory;
      buffers_[p] = std::make_unique<WireBuffer>(exchange_.link_, memory, kDepth * piece_);
      memory += kDepth * piece_;
    }
  }

  // Piece `k` of this rank's region as the others would receive it; valid until the next one.
  const void* Own(int64_t k) {
    Cast(exchange_.rank_, k, staging_.data());
    return staging_.data();
  }

  // Sends piece `k` to every peer that has one, once its memory is free.
  void Start(int64_t k) {
    for (int peer : exchange_.Peers()) {
      const auto p = static_cast<size_t>(peer);
      if (k * piece_ >= regions_[p].bytes) continue;
      if (k >= kDepth) Await(peer);
      const int64_t bytes = Cast(peer, k, memory_[p] + k % kDepth * piece_);
      buffers_[p]->Send(exchange_.WorldRank(peer), exchange_.Slot(WireKind::kReduce, k),
                        k % kDepth * piece_, bytes);
    }
  }

  // Sends what is left from piece `k` on, and returns when all is on its way.
  void Finish(int64_t k) {
    for (int64_t most = MostPieces(); k < most; ++k) Start(k);
    for (int peer : exchange_.Peers()) {
      const int64_t pieces = Pieces(regions_[static_cast<size_t>(peer)].bytes, piece_);
      for (int64_t i = 0; i < std::min(kDepth, pieces); ++i) Await(peer);
    }
  }

 private:
  int64_t Cast(int rank, int64_t k, char* to) const {
    const Region region = regions_[static_cast<size_t>(rank)];
    const int64_t bytes = std::min(piece_, region.bytes - k * piece_);
    const WireTypes& types = exchange_.call_.types;
    CastElements(exchange_.FullAt(full_, region.begin + k * piece_), types.full, to, types.wire,
                 exchange_.WireElems(bytes));
    return bytes;
  }
  void Await(int peer) {
    exchange_.channel_.waiting_for = exchange_.WorldRank(peer);
    buffers_[static_cast<size_t>(peer)]->WaitSend();
  }
  int64_t MostPieces() const {
    int64_t most = 0;
    for (int peer : exchange_.Peers()) {
      most = std::max(most, Pieces(regions_[static_cast<size_t>(peer)].bytes, piece_));
    }
    return most;
  }

  Exchange& exchange_;
  const char* const full_;
  const std::vector<Region>& regions_;
  const int64_t piece_;
  Staging staging_;
  std::vector<char*> memory_;
  Buffers buffers_;
};

void Exchange::Reduce(const char* full, const std::vector<Region>& regions, char* out, bool add) {
  const WireTypes& types = call_.types;
  const int64_t received = kDepth * (size_ - 1);
  const int64_t piece = casts() ? CastPiece(2 * received + 1, regions) : StagedPiece(received);
  const Region own = regions[static_cast<size_t>(rank_)];
  const int64_t pieces = Pieces(own.bytes, piece);
  const int64_t depth = std::min(kDepth, pieces);
  Staging staging(link_.options().device, depth * piece * (size_ - 1));
  auto length = [&](int64_t k) { return std::min(piece, own.bytes - k * piece); };

  Buffers incoming(static_cast<size_t>(size_));
  std::vector<char*> memory(static_cast<size_t>(size_));
  auto receive = [&](int peer, int64_t k) {
    if (k >= pieces) return;
    incoming[static_cast<size_t>(peer)]->Receive(WorldRank(peer), Slot(WireKind::kReduce, k),
                                                 k % depth * piece, length(k));
  };
  char* next = staging.data();
  for (int peer : Peers()) {
    const auto p = static_cast<size_t>(peer);
    memory[p] = next;
    next += depth * piece;
    if (pieces == 0) continue;
    incoming[p] = std::make_unique<WireBuffer>(link_, memory[p], depth * piece);
    for (int64_t k = 0; k < depth; ++k) receive(peer, k);
  }
  Buffers outgoing;
  std::optional<CastSends> cast;
  if (casts()) {
    cast.emplace(*this, full, regions, piece);
    for (int64_t k = 0; k < kDepth; ++k) cast->Start(k);
  } else {
    outgoing = SendRegions(full, regions, piece, WireKind::kReduce);
  }
  std::vector<const void*> inputs(static_cast<size_t>(size_));
  for (int64_t k = 0; k < pieces; ++k) {
    for (int peer : Peers()) {
      const auto p = static_cast<size_t>(peer);
      WaitFor(peer, *incoming[p]);
      inputs[p] = memory[p] + k % depth * piece;
    }
    inputs[static_cast<size_t>(rank_)] = cast ? cast->Own(k) : full + own.begin + k * piece;
    SumInRankOrder(inputs, types.wire,
                   {out + WireElems(k * piece) * SizeOf(types.shard), types.shard, add},
                   WireElems(length(k)));
    for (int peer : Peers()) receive(peer, k + depth);
    if (cast) cast->Start(k + kDepth);
  }
  if (cast) return cast->Finish(pieces + kDepth);
  AwaitSends(outgoing, regions, piece);
}

void Exchange::ReduceDirectly(char* data, int64_t bytes) {
  if (bytes == 0) return;
  const WireTypes& types = call_.types;
  Staging staging(link_.options().device, bytes * (casts() ? size_ : size_ - 1));
  Buffers incoming(static_cast<size_t>(size_));
  char* own = data;
  char* next = staging.data();
  if (casts()) {
    own = next;
    next += bytes;
    CastElements(data, types.full, own, types.wire, WireElems(bytes));
  }
  std::vector<const void*> inputs(static_cast<size_t>(size_), own);
  for (int peer : Peers()) {
    const auto p = static_cast<size_t>(peer);
    inputs[p] = next;
    incoming[p] = std::make_unique<WireBuffer>(link_, next, bytes);
    incoming[p]->Receive(WorldRank(peer), Slot(WireKind::kReduce), 0, bytes);
    next += bytes;
  }
  const std::vector<Region> regions(static_cast<size_t>(size_), Region{0, bytes});
  auto outgoing = SendRegions(own, regions, bytes, WireKind::kReduce);
  for (int peer : Peers()) WaitFor(peer, *incoming[static_cast<size_t>(peer)]);
  AwaitSends(outgoing, regions, bytes);
  SumInRankOrder(inputs, types.wire, {data, types.full, /*add=*/false}, WireElems(bytes));
  RoundThroughWire(data, WireElems(bytes), types.full, types.wire);
}

void Exchange::GatherCast(char* data, const std::vector<Region>& regions) {
  const WireTypes& types = call_.types;
  const int64_t piece = CastPiece(kDepth * size_, regions);
  Staging staging(link_.options().device, kDepth * piece * size_);
  auto memory = [&](int rank, int64_t k) {
    return staging.data() + (kDepth * rank + k % kDepth) * piece;
  };
  auto length = [&](int rank, int64_t k) {
    return std::clamp<int64_t>(regions[static_cast<size_t>(rank)].bytes - k * piece, 0, piece);
  };
  auto elements = [&](int rank, int64_t k) {
    return const_cast<char*>(FullAt(data, regions[static_cast<size_t>(rank)].begin + k * piece));
  };
  Buffers incoming(regions.size());
  Buffers outgoing(regions.size());
  auto receive = [&](int peer, int64_t k) {
    if (length(peer, k) == 0) return;
    incoming[static_cast<size_t>(peer)]->Receive(WorldRank(peer), Slot(WireKind::kSpread, k),
                                                 k % kDepth * piece, length(peer, k));
  };
  auto await_sends = [&] {
    for (int peer : Peers()) {
      channel_.waiting_for = WorldRank(peer);
      outgoing[static_cast<size_t>(peer)]->WaitSend();
    }
  };
  auto send = [&](int64_t k) {
    if (length(rank_, k) == 0) return;
    if (k >= kDepth) await_sends();
    CastElements(elements(rank_, k), types.full, memory(rank_, k), types.wire,
                 WireElems(length(rank_, k)));
    CastElements(memory(rank_, k), types.wire, elements(rank_, k), types.full,
                 WireElems(length(rank_, k)));
    for (int peer : Peers()) {
      outgoing[static_cast<size_t>(peer)]->Send(WorldRank(peer), Slot(WireKind::kSpread, k),
                                                k % kDepth * piece, length(rank_, k));
    }
  };
  int64_t most = 0;
  for (const Region& region : regions) most = std::max(most, Pieces(region.bytes, piece));
  for (int peer : Peers()) {
    const auto p = static_cast<size_t>(peer);
    incoming[p] = std::make_unique<WireBuffer>(link_, memory(peer, 0), kDepth * piece);
    outgoing[p] = std::make_unique<WireBuffer>(link_, memory(rank_, 0), kDepth * piece);
    for (int64_t k = 0; k < kDepth; ++k) receive(peer, k);
  }
  for (int64_t k = 0; k < kDepth; ++k) send(k);
  for (int64_t k = 0; k < most; ++k) {
    for (int peer : Peers()) {
      if (length(peer, k) == 0) continue;
      WaitFor(peer, *incoming[static_cast<size_t>(peer)]);
      CastElements(memory(peer, k), types.wire, elements(peer, k), types.full,
                   WireElems(length(peer, k)));
      receive(peer, k + kDepth);
    }
    send(k + kDepth);
  }
  for (int64_t k = 0;
       k < std::min(kDepth, Pieces(regions[static_cast<size_t>(rank_)].bytes, piece)); ++k)
    await_sends();
}

}  // namespace sherd::internal
