#include "sherd/runtime/comm/gloo_group.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/runtime/comm/internal/gloo_exchange.h"
#include "sherd/runtime/comm/internal/gloo_link.h"
#include "sherd/runtime/core/random.h"

namespace sherd {
namespace {

using internal::Channel;
using internal::Exchange;
using internal::GlooLink;
using internal::Interrupted;
using internal::Pieces;
using internal::Region;

constexpr int64_t kSmallAllReduceBytes = 32 * 1024;

class GlooGroup final : public ProcessGroup {
 public:
  GlooGroup(std::shared_ptr<GlooLink> link, Channel& channel)
      : ProcessGroup(channel.rank, static_cast<int>(channel.members.size()),
                     Describe(*link, channel)),
        link_(std::move(link)),
        channel_(channel) {}

  void Abort(const absl::Status& why) noexcept override { link_->Abort(why); }
  void Fail(const absl::Status& why) noexcept override { link_->Fail(why); }
  absl::Status Failure() const override { return link_->failure(); }

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
      const int64_t own = regions[static_cast<size_t>(rank())].begin / SizeOf(call.types.wire) *
                          SizeOf(call.types.full);
      exchange.Reduce(data, regions, data + own,
                      /*add=*/false);
      if (call.types.full == call.types.wire) return exchange.Gather(data, regions);
      exchange.GatherCast(data, regions);
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
    return std::make_unique<GlooGroup>(link_, link_->OpenChannel(channel_, name, channel_.members));
  }

  std::unique_ptr<ProcessGroup> DoSplit(std::string name, std::span<const int> ranks) override {
    CompareLists(name, ranks);
    std::vector<int> members;
    for (int r : ranks) members.push_back(channel_.members[static_cast<size_t>(r)]);
    return std::make_unique<GlooGroup>(link_,
                                       link_->OpenChannel(channel_, name, std::move(members)));
  }

 private:
  // "gloo 'world' rank 1 of 4", of a part "gloo 'shard' rank 0 of 2 (rank 2 of 4)".
  static std::string Describe(const GlooLink& link, const Channel& channel) {
    std::string text = absl::StrCat("gloo '", channel.name, "' rank ", channel.rank, " of ",
                                    channel.members.size());
    if (static_cast<int>(channel.members.size()) < link.size()) {
      absl::StrAppend(&text, " (rank ", link.rank(), " of ", link.size(), ")");
    }
    return text;
  }

  // Every rank of my list must have come with the same list: then the lists are parts of a whole.
  void CompareLists(const std::string& name, std::span<const int> ranks) {
    const ErrorContext context{.op = "split"};
    uint64_t own = HashName(name);
    for (int r : ranks) own = Mix64(own, static_cast<uint64_t>(r));
    std::vector<uint64_t> hashes(static_cast<size_t>(size()));
    AllGather(&own, hashes.data(), sizeof(own), context);
    for (int r : ranks) {
      if (hashes[static_cast<size_t>(r)] == own) continue;
      link_->Fail(absl::FailedPreconditionError(absl::StrCat(
          "rank ", link_->rank(), " splits '", channel_.name, "' into '", name, "' of ranks [",
          absl::StrJoin(ranks, ", "), "], but rank ", channel_.members[static_cast<size_t>(r)],
          " of it came with another name or list")));
      break;
    }
    // Nobody goes on before all have compared.
    Barrier(context);
  }

  std::vector<Region> EqualRegions(int64_t bytes) const {
    std::vector<Region> regions;
    for (int r = 0; r < size(); ++r) regions.push_back({r * bytes, bytes});
    return regions;
  }

  template <typename Body>
  void Collective(const CollectiveCall& call, const Body& body) {
    internal::SigpipeGuard sigpipe;
    link_->Begin(channel_, call);
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
      link_->Fail(absl::Status(error.code(), absl::StrCat("rank ", link_->rank(), " failed in ",
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
  if (options.piece_bytes < internal::kMinPieceBytes || options.piece_bytes % 64 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("piece_bytes is ", options.piece_bytes,
                                                   "; it must be a multiple of 64, at least ",
                                                   internal::kMinPieceBytes));
  }
  absl::StatusOr<std::shared_ptr<GlooLink>> link =
      GlooLink::Connect(std::move(store), rank, size, options);
  if (!link.ok()) return link.status();
  return std::unique_ptr<ProcessGroup>(std::make_unique<GlooGroup>(*link, (*link)->OpenWorld()));
}

}  // namespace sherd
