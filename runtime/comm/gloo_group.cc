#include "sherd/runtime/comm/gloo_group.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/comm/internal/gloo_link.h"
#include "sherd/runtime/comm/internal/rank_sum.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/random.h"

namespace sherd {
namespace {

using internal::CallHeader;
using internal::Channel;
using internal::GlooLink;
using internal::Interrupted;
using internal::WireBuffer;
using internal::WireKind;

constexpr uint32_t kMagic = 0x44524853;  // "SHRD"
constexpr int64_t kSmallAllReduceBytes = 32 * 1024;
constexpr int64_t kStagingLimitBytes = int64_t{64} << 20;
constexpr int64_t kMinPieceBytes = 64 * 1024;
// Receives posted at once for each peer. Two keep the wire busy while a piece is summed; more would
// fill the connection with one fork's data while another's headers wait behind it.
constexpr int64_t kDepth = 2;

// A part of a buffer, in bytes.
struct Region {
  int64_t begin = 0;
  int64_t bytes = 0;
};

int64_t Pieces(int64_t bytes, int64_t piece) { return (bytes + piece - 1) / piece; }

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

// What each rank calls, from the headers of all; "" when they agree.
std::string Disagreement(const std::vector<CallHeader>& headers, const CallHeader& own) {
  const CallHeader& first = headers[0];
  auto call = [&](const CallHeader& h) {
    CollectiveCall c{.op = static_cast<CollectiveOp>(h.op),
                     .bytes = h.bytes,
                     .dtype = static_cast<DType>(h.dtype),
                     .root = h.root,
                     .sequence = h.sequence};
    std::string text = c.ToString();
    if (h.channel_hash != own.channel_hash) absl::StrAppend(&text, " on a fork of another name");
    if (h.piece_bytes != first.piece_bytes) {
      absl::StrAppend(&text, " in pieces of ", h.piece_bytes, " bytes, not ", first.piece_bytes);
    }
    return text;
  };
  for (size_t r = 1; r < headers.size(); ++r) {
    if (std::memcmp(&headers[r], &first, sizeof(CallHeader)) == 0) continue;
    return absl::StrCat("ranks call different collectives: rank 0 called ", call(first), ", rank ",
                        r, " called ", call(headers[r]));
  }
  return "";
}

// One collective of the Gloo group while it runs: the exchange of headers, then the transfers.
class Exchange {
 public:
  Exchange(GlooLink& link, Channel& channel, const CollectiveCall& call)
      : link_(link), channel_(channel), call_(call), size_(link.size()), rank_(link.rank()) {}

  // Tells every peer what this rank calls and learns what they call. Returns when all have called.
  // Errors: kFailedPrecondition naming two calls that differ.
  void Agree() {
    if (!channel_.posting_failed.empty()) throw Interrupted{channel_.posting_failed};
    channel_.sent = {.magic = kMagic,
                     .op = static_cast<uint8_t>(call_.op),
                     .dtype = static_cast<uint8_t>(call_.dtype),
                     .root = call_.root,
                     .bytes = call_.bytes,
                     .piece_bytes = link_.options().piece_bytes,
                     .sequence = call_.sequence,
                     .channel_hash = HashName(channel_.name)};
    for (int peer : Peers()) {
      channel_.send_header->Send(peer, Slot(WireKind::kHeader), 0, sizeof(CallHeader));
    }
    for (int i = 1; i < size_; ++i) channel_.receive_header->WaitReceive();
    for (int i = 1; i < size_; ++i) channel_.send_header->WaitSend();
    std::vector<CallHeader> headers = channel_.received;
    headers[static_cast<size_t>(rank_)] = channel_.sent;
    channel_.agreed = true;
    link_.PostHeaders(channel_);
    const std::string disagreement = Disagreement(headers, channel_.sent);
    if (!disagreement.empty()) {
      link_.Fail(absl::FailedPreconditionError(disagreement));
      throw Interrupted{};
    }
  }

  // Sends region rank() of `data` to all and receives the other regions from their ranks.
  void Gather(char* data, const std::vector<Region>& regions) {
    Spread(data, regions, regions[static_cast<size_t>(rank_)]);
  }

  // Sends all of `data` from rank `root` to the others.
  void SendAll(char* data, int64_t bytes, int root) {
    std::vector<Region> regions(static_cast<size_t>(size_), Region{0, 0});
    regions[static_cast<size_t>(root)] = {0, bytes};
    Spread(data, regions, rank_ == root ? Region{0, bytes} : Region{});
  }

  // Sums the ranks' `full` over region rank() into `out`, a buffer that begins where that region
  // does; the other regions go to their ranks.
  void Reduce(const char* full, const std::vector<Region>& regions, char* out, bool add) {
    const int64_t piece = StagedPiece();
    const Region own = regions[static_cast<size_t>(rank_)];
    const int64_t pieces = Pieces(own.bytes, piece);
    const int64_t depth = std::min(kDepth, pieces);
    Staging staging(link_.options().device, depth * piece * (size_ - 1));
    auto length = [&](int64_t k) { return std::min(piece, own.bytes - k * piece); };

    std::vector<std::unique_ptr<WireBuffer>> incoming(static_cast<size_t>(size_));
    std::vector<char*> memory(static_cast<size_t>(size_));
    int64_t used = 0;
    for (int peer : Peers()) {
      const auto p = static_cast<size_t>(peer);
      memory[p] = staging.data() + used;
      used += depth * piece;
      if (pieces == 0) continue;
      incoming[p] = std::make_unique<WireBuffer>(link_, memory[p], depth * piece);
      for (int64_t k = 0; k < depth; ++k) {
        incoming[p]->Receive(peer, Slot(WireKind::kReduce, k), k % depth * piece, length(k));
      }
    }
    std::vector<std::unique_ptr<WireBuffer>> outgoing =
        SendRegions(full, regions, piece, WireKind::kReduce);
    std::vector<const void*> inputs(static_cast<size_t>(size_));
    for (int64_t k = 0; k < pieces; ++k) {
      for (int peer : Peers()) {
        const auto p = static_cast<size_t>(peer);
        WaitFor(peer, *incoming[p]);
        inputs[p] = memory[p] + k % depth * piece;
      }
      inputs[static_cast<size_t>(rank_)] = full + own.begin + k * piece;
      internal::SumInRankOrder(inputs, out + k * piece, length(k) / SizeOf(call_.dtype),
                               call_.dtype, add);
      if (k + depth >= pieces) continue;
      for (int peer : Peers()) {
        incoming[static_cast<size_t>(peer)]->Receive(peer, Slot(WireKind::kReduce, k + depth),
                                                     k % depth * piece, length(k + depth));
      }
    }
    AwaitSends(outgoing, regions, piece);
  }

  // Sends all of `data` to everyone and sums what comes: the fewest rounds, for small buffers.
  void ReduceDirectly(char* data, int64_t bytes) {
    if (bytes == 0) return;
    Staging staging(link_.options().device, bytes * (size_ - 1));
    std::vector<std::unique_ptr<WireBuffer>> incoming(static_cast<size_t>(size_));
    std::vector<const void*> inputs(static_cast<size_t>(size_), data);
    int64_t used = 0;
    for (int peer : Peers()) {
      const auto p = static_cast<size_t>(peer);
      inputs[p] = staging.data() + used;
      incoming[p] = std::make_unique<WireBuffer>(link_, staging.data() + used, bytes);
      incoming[p]->Receive(peer, Slot(WireKind::kReduce), 0, bytes);
      used += bytes;
    }
    const std::vector<Region> regions(static_cast<size_t>(size_), Region{0, bytes});
    auto outgoing = SendRegions(data, regions, bytes, WireKind::kReduce);
    for (int peer : Peers()) WaitFor(peer, *incoming[static_cast<size_t>(peer)]);
    AwaitSends(outgoing, regions, bytes);
    internal::SumInRankOrder(inputs, data, bytes / SizeOf(call_.dtype), call_.dtype,
                             /*add=*/false);
  }

 private:
  uint64_t Slot(WireKind kind, int64_t piece = 0) const {
    return internal::WireSlot(kind, channel_, piece);
  }

  // The other ranks, beginning with the next one, so that not all send to rank 0 first.
  std::vector<int> Peers() const {
    std::vector<int> peers;
    for (int i = 1; i < size_; ++i) peers.push_back((rank_ + i) % size_);
    return peers;
  }

  // Smaller pieces for many ranks keep the staging of one reduction below a fixed limit.
  int64_t StagedPiece() const {
    const int64_t fitting = kStagingLimitBytes / (kDepth * (size_ - 1)) / 64 * 64;
    return std::min(link_.options().piece_bytes, std::max(fitting, kMinPieceBytes));
  }

  void WaitFor(int peer, WireBuffer& buffer) {
    channel_.waiting_for = peer;
    buffer.WaitReceive();
  }

  std::vector<std::unique_ptr<WireBuffer>> SendRegions(const char* data,
                                                       const std::vector<Region>& regions,
                                                       int64_t piece, WireKind kind) {
    std::vector<std::unique_ptr<WireBuffer>> outgoing(regions.size());
    for (int peer : Peers()) {
      const Region region = regions[static_cast<size_t>(peer)];
      if (region.bytes == 0) continue;
      auto& buffer = outgoing[static_cast<size_t>(peer)];
      buffer =
          std::make_unique<WireBuffer>(link_, const_cast<char*>(data) + region.begin, region.bytes);
      for (int64_t k = 0; k < Pieces(region.bytes, piece); ++k) {
        buffer->Send(peer, Slot(kind, k), k * piece, std::min(piece, region.bytes - k * piece));
      }
    }
    return outgoing;
  }

  void AwaitSends(std::vector<std::unique_ptr<WireBuffer>>& outgoing,
                  const std::vector<Region>& regions, int64_t piece) {
    for (int peer : Peers()) {
      const auto p = static_cast<size_t>(peer);
      if (outgoing[p] == nullptr) continue;
      channel_.waiting_for = peer;
      for (int64_t k = 0; k < Pieces(regions[p].bytes, piece); ++k) outgoing[p]->WaitSend();
    }
  }

  // Sends `own` to every peer and receives peers' regions in place.
  void Spread(char* data, const std::vector<Region>& regions, Region own) {
    const int64_t piece = link_.options().piece_bytes;
    std::vector<std::unique_ptr<WireBuffer>> incoming(regions.size());
    auto receive = [&](int peer, int64_t k) {
      const Region region = regions[static_cast<size_t>(peer)];
      if (k * piece >= region.bytes) return;
      incoming[static_cast<size_t>(peer)]->Receive(peer, Slot(WireKind::kSpread, k), k * piece,
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

  GlooLink& link_;
  Channel& channel_;
  const CollectiveCall& call_;
  const int size_;
  const int rank_;
};

class GlooGroup final : public ProcessGroup {
 public:
  GlooGroup(std::shared_ptr<GlooLink> link, const std::string& name)
      : ProcessGroup(link->rank(), link->size(),
                     absl::StrCat("gloo '", name, "' rank ", link->rank(), " of ", link->size())),
        link_(std::move(link)),
        channel_(link_->OpenChannel(name)) {}

  void Abort(const absl::Status& why) noexcept override { link_->Abort(why); }

 protected:
  void DoAllGather(const CollectiveCall& call, const void* shard, void* full) override {
    Collective(call, [&](Exchange& exchange) {
      char* own = static_cast<char*>(full) + rank() * call.bytes;
      if (shard != own && call.bytes > 0) {
        std::memcpy(own, shard, static_cast<size_t>(call.bytes));
      }
      exchange.Gather(static_cast<char*>(full), EqualRegions(call.bytes));
    });
  }

  void DoReduceScatter(const CollectiveCall& call, const void* full, void* shard) override {
    Collective(call, [&](Exchange& exchange) {
      exchange.Reduce(static_cast<const char*>(full), EqualRegions(call.bytes),
                      static_cast<char*>(shard), call.add);
    });
  }

  void DoAllReduce(const CollectiveCall& call, void* data_bytes) override {
    char* data = static_cast<char*>(data_bytes);
    Collective(call, [&](Exchange& exchange) {
      if (call.bytes <= kSmallAllReduceBytes) return exchange.ReduceDirectly(data, call.bytes);
      const int64_t chunk = Pieces(call.bytes, int64_t{64} * size()) * 64;
      std::vector<Region> regions;
      for (int r = 0; r < size(); ++r) {
        const int64_t begin = std::min(call.bytes, r * chunk);
        regions.push_back({begin, std::min(call.bytes, begin + chunk) - begin});
      }
      exchange.Reduce(data, regions, data + regions[static_cast<size_t>(rank())].begin,
                      /*add=*/false);
      exchange.Gather(data, regions);
    });
  }

  void DoBroadcast(const CollectiveCall& call, void* data) override {
    Collective(call, [&](Exchange& exchange) {
      exchange.SendAll(static_cast<char*>(data), call.bytes, call.root);
    });
  }

  void DoBarrier(const CollectiveCall& call) override {
    Collective(call, [](Exchange&) {});
  }

  std::unique_ptr<ProcessGroup> DoFork(std::string name) override {
    return std::make_unique<GlooGroup>(link_, name);
  }

 private:
  std::vector<Region> EqualRegions(int64_t bytes) const {
    std::vector<Region> regions;
    for (int r = 0; r < size(); ++r) regions.push_back({r * bytes, bytes});
    return regions;
  }

  template <typename Body>
  void Collective(const CollectiveCall& call, const Body& body) {
    internal::SigpipeGuard sigpipe;
    link_->Begin(channel_);
    struct AtEnd {
      GlooGroup& group;
      ~AtEnd() { group.link_->End(group.channel_); }
    } at_end{*this};
    try {
      Exchange exchange(*link_, channel_, call);
      exchange.Agree();
      body(exchange);
      link_->CheckInTime(channel_);
    } catch (const Interrupted& how) {
      link_->Explain(channel_, call, how);
    } catch (const Error& error) {
      link_->Fail(absl::Status(error.code(), absl::StrCat("rank ", rank(), " failed in ",
                                                          call.ToString(), ": ", error.message())));
      throw;
    }
  }

  const std::shared_ptr<GlooLink> link_;
  Channel& channel_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> ConnectGloo(std::shared_ptr<Store> store, int rank,
                                                          int size, GlooOptions options) {
  if (!options.device.defined()) options.device = Device::Cpu();
  if (options.piece_bytes < kMinPieceBytes || options.piece_bytes % 64 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("piece_bytes is ", options.piece_bytes,
                                                   "; it must be a multiple of 64, at least ",
                                                   kMinPieceBytes));
  }
  absl::StatusOr<std::shared_ptr<GlooLink>> link =
      GlooLink::Connect(std::move(store), rank, size, options);
  if (!link.ok()) return link.status();
  return std::unique_ptr<ProcessGroup>(std::make_unique<GlooGroup>(*std::move(link), "world"));
}

}  // namespace sherd
