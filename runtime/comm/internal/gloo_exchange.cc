#include "sherd/runtime/comm/internal/gloo_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/core/random.h"

namespace sherd::internal {
namespace {

constexpr uint64_t kMagic = 0x44524853;  // "SHRD"

// What each rank calls, from the headers of all; "" when they agree.
std::string Compare(const std::vector<CallHeader>& headers, const Channel& channel) {
  std::vector<NamedCall> calls;
  for (size_t r = 0; r < headers.size(); ++r) {
    const CallHeader& h = headers[r];
    NamedCall call{.rank = channel.members[r], .record = h.call, .remark = ""};
    if (h.channel_hash != channel.sent.channel_hash) call.remark = " on a fork of another name";
    if (h.piece_bytes != headers[0].piece_bytes) {
      absl::StrAppend(&call.remark, " in pieces of ", h.piece_bytes, " bytes, not ",
                      headers[0].piece_bytes);
    }
    calls.push_back(std::move(call));
  }
  return Disagreement(calls, channel.members);
}

}  // namespace

void Exchange::Agree() {
  if (!channel_.posting_failed.empty()) throw Interrupted{channel_.posting_failed};
  channel_.sent = {.channel_hash = HashName(channel_.name),
                   .piece_bytes = link_.options().piece_bytes,
                   .call = RecordOf(call_),
                   .magic = kMagic};
  for (int peer : Peers()) {
    channel_.send_header->Send(WorldRank(peer), Slot(WireKind::kHeader), 0, sizeof(CallHeader));
  }
  for (int i = 1; i < size_; ++i) channel_.receive_header->WaitReceive();
  for (int i = 1; i < size_; ++i) channel_.send_header->WaitSend();
  std::vector<CallHeader> headers = channel_.received;
  headers[static_cast<size_t>(rank_)] = channel_.sent;
  channel_.agreed = true;
  link_.PostHeaders(channel_);
  const std::string disagreement = Compare(headers, channel_);
  if (!disagreement.empty()) {
    link_.Fail(absl::FailedPreconditionError(disagreement));
    throw Interrupted{};
  }
}

void Exchange::Gather(char* data, const std::vector<Region>& regions) {
  Spread(data, regions, regions[static_cast<size_t>(rank_)]);
}

void Exchange::SendAll(char* data, int64_t bytes, int root) {
  std::vector<Region> regions(static_cast<size_t>(size_), Region{0, 0});
  regions[static_cast<size_t>(root)] = {0, bytes};
  Spread(data, regions, rank_ == root ? Region{0, bytes} : Region{});
}

// The other ranks, beginning with the next one, so that not all send to rank 0 first.
std::vector<int> Exchange::Peers() const {
  std::vector<int> peers;
  for (int i = 1; i < size_; ++i) peers.push_back((rank_ + i) % size_);
  return peers;
}

void Exchange::WaitFor(int peer, WireBuffer& buffer) {
  channel_.waiting_for = WorldRank(peer);
  buffer.WaitReceive();
}

Exchange::Buffers Exchange::SendRegions(const char* data, const std::vector<Region>& regions,
                                        int64_t piece, WireKind kind) {
  Buffers outgoing(regions.size());
  for (int peer : Peers()) {
    const Region region = regions[static_cast<size_t>(peer)];
    if (region.bytes == 0) continue;
    auto& buffer = outgoing[static_cast<size_t>(peer)];
    buffer =
        std::make_unique<WireBuffer>(link_, const_cast<char*>(data) + region.begin, region.bytes);
    for (int64_t k = 0; k < Pieces(region.bytes, piece); ++k) {
      buffer->Send(WorldRank(peer), Slot(kind, k), k * piece,
                   std::min(piece, region.bytes - k * piece));
    }
  }
  return outgoing;
}

void Exchange::AwaitSends(Buffers& outgoing, const std::vector<Region>& regions, int64_t piece) {
  for (int peer : Peers()) {
    const auto p = static_cast<size_t>(peer);
    if (outgoing[p] == nullptr) continue;
    channel_.waiting_for = WorldRank(peer);
    for (int64_t k = 0; k < Pieces(regions[p].bytes, piece); ++k) outgoing[p]->WaitSend();
  }
}

// Sends `own` to every peer and receives peers' regions in place.
void Exchange::Spread(char* data, const std::vector<Region>& regions, Region own) {
  const int64_t piece = link_.options().piece_bytes;
  Buffers incoming(regions.size());
  auto receive = [&](int peer, int64_t k) {
    const Region region = regions[static_cast<size_t>(peer)];
    if (k * piece >= region.bytes) return;
    incoming[static_cast<size_t>(peer)]->Receive(WorldRank(peer), Slot(WireKind::kSpread, k),
                                                 k * piece,
                                                 std::min(piece, region.bytes - k * piece));
  };
  int64_t most = 0;
  for (int peer : Peers()) {
    const Region region = regions[static_cast<size_t>(peer)];
    if (region.bytes == 0) continue;
    most = std::max(most, Pieces(region.bytes, piece));
    incoming[static_cast<size_t>(peer)] =
        std::make_unique<WireBuffer>(link_, data + region.begin, region.bytes);
    for (int64_t k = 0; k < kDepth; ++k) receive(peer, k);
  }
  const std::vector<Region> to_all(regions.size(), own);
  auto outgoing = SendRegions(data, to_all, piece, WireKind::kSpread);
  for (int64_t k = 0; k < most; ++k) {
    for (int peer : Peers()) {
      if (k * piece >= regions[static_cast<size_t>(peer)].bytes) continue;
      WaitFor(peer, *incoming[static_cast<size_t>(peer)]);
      receive(peer, k + kDepth);
    }
  }
  AwaitSends(outgoing, to_all, piece);
}

}  // namespace sherd::internal
