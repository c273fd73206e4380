#include "sherd/runtime/comm/staged_group.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

constexpr int64_t kAlignment = 64;

int64_t RoundUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Elements of every rank's part, and the host memory they pass through.
struct Piece {
  int64_t begin = 0;
  int64_t elems = 0;
  char* host = nullptr;
  ErrorContext context;
};

// Host memory in two halves: one is copied while the other travels.
//
// [Note: when a half is free] The device copies from a half after the call that filled it has
// returned, and to a half whose exchange may have failed. `used_` is the moment after that, for
// which whoever touches the half next waits.
class Staging {
 public:
  explicit Staging(const DeviceBackend& backend) : backend_(backend) {}
  ~Staging() {
    try {
      AwaitFree(0);
      AwaitFree(1);
    } catch (const Error&) {
      // The device is lost, so it copies no more.
    }
  }

  // Two halves of at least so many bytes.
  void Reserve(int64_t half_bytes) {
    if (half_bytes <= half_bytes_) return;
    AwaitFree(0);
    AwaitFree(1);
    memory_ = nullptr;
    memory_ = backend_.HostMemory(2 * half_bytes);
    half_bytes_ = half_bytes;
  }
  char* half(int i) const { return static_cast<char*>(memory_.get()) + i * half_bytes_; }

  void AwaitFree(int i) {
    if (used_[i] != nullptr && !used_[i]->Done()) {
      backend_.queue().WaitFor(*used_[i]);
      backend_.queue().Synchronize();
    }
    used_[i] = nullptr;
  }
  // The device uses half `i` until now.
  void NoteUse(int i) { used_[i] = backend_.queue().Record(); }

 private:
  const DeviceBackend& backend_;
  std::shared_ptr<void> memory_;
  int64_t half_bytes_ = 0;
  std::shared_ptr<const DeviceEvent> used_[2];
};

class StagedGroup final : public ProcessGroup {
 public:
  StagedGroup(std::shared_ptr<ProcessGroup> inner, Device device, const StagedOptions& options)
      : ProcessGroup(inner->rank(), inner->size(), inner->description()),
        inner_(std::move(inner)),
        device_(std::move(device)),
        backend_(*device_.backend()),
        options_(options),
        staging_(backend_) {}

  void Abort(const absl::Status& why) noexcept override { inner_->Abort(why); }
  void Fail(const absl::Status& why) noexcept override { inner_->Fail(why); }
  absl::Status Failure() const override { return inner_->Failure(); }

 protected:
  void DoAllGather(const CollectiveCall& call, const void* shard, void* full) override {
    if (!Owns(shard) && !Owns(full)) {
      return inner_->AllGather(shard, full, call.bytes, call.context);
    }
    const bool in_place = shard == At(full, rank() * call.bytes);
    InPieces(
        call, call.bytes, size(),
        [&](const Piece& p) {
          return Fetch(p.host + rank() * p.elems, At(shard, p.begin), p.elems);
        },
        [&](const Piece& p) {
          inner_->AllGather(p.host + rank() * p.elems, p.host, p.elems, p.context);
        },
        [&](const Piece& p) {
          for (int r = 0; r < size(); ++r) {
            if (r == rank() && in_place) continue;
            Deliver(At(full, r * call.bytes + p.begin), p.host + r * p.elems, p.elems);
          }
        });
  }

  void DoReduceScatter(const CollectiveCall& call, const void* full, void* shard) override {
    const int64_t elems = call.bytes / SizeOf(call.dtype);
    if (!Owns(shard) && !Owns(full)) {
      return inner_->ReduceScatter(full, shard, elems, call.types, call.add, call.context);
    }
    const int64_t in = SizeOf(call.types.full);
    const int64_t out = SizeOf(call.types.shard);
    const auto sum = [&](const Piece& p) { return p.host + RoundUp(size() * p.elems * in); };
    InPieces(
        call, elems, size() * in + out,
        [&](const Piece& p) {
          bool queued = false;
          for (int r = 0; r < size(); ++r) {
            queued |= Fetch(p.host + r * p.elems * in, At(full, (r * elems + p.begin) * in),
                            p.elems * in);
          }
          if (call.add) queued |= Fetch(sum(p), At(shard, p.begin * out), p.elems * out);
          return queued;
        },
        [&](const Piece& p) {
          inner_->ReduceScatter(p.host, sum(p), p.elems, call.types, call.add, p.context);
        },
        [&](const Piece& p) { Deliver(At(shard, p.begin * out), sum(p), p.elems * out); });
  }

  void DoAllReduce(const CollectiveCall& call, void* data) override {
    const int64_t elems = call.bytes / SizeOf(call.dtype);
    const DType dtype = call.types.full;
    if (!Owns(data)) {
      return inner_->AllReduce(data, elems, dtype, call.types.wire, call.context);
    }
    const int64_t size = SizeOf(dtype);
    InPieces(
        call, elems, size,
        [&](const Piece& p) { return Fetch(p.host, At(data, p.begin * size), p.elems * size); },
        [&](const Piece& p) {
          inner_->AllReduce(p.host, p.elems, dtype, call.types.wire, p.context);
        },
        [&](const Piece& p) { Deliver(At(data, p.begin * size), p.host, p.elems * size); });
  }

  void DoBroadcast(const CollectiveCall& call, void* data) override {
    if (!Owns(data)) return inner_->Broadcast(data, call.bytes, call.root, call.context);
    const bool sends = rank() == call.root;
    InPieces(
        call, call.bytes, 1,
        [&](const Piece& p) { return sends && Fetch(p.host, At(data, p.begin), p.elems); },
        [&](const Piece& p) { inner_->Broadcast(p.host, p.elems, call.root, p.context); },
        [&](const Piece& p) {
          if (!sends) Deliver(At(data, p.begin), p.host, p.elems);
        });
  }

  void DoBarrier(const CollectiveCall& call) override { inner_->Barrier(call.context); }

  std::unique_ptr<ProcessGroup> DoFork(std::string name) override {
    return MakeStagedGroup(inner_->Fork(std::move(name)), device_, options_);
  }
  std::unique_ptr<ProcessGroup> DoSplit(std::string name, std::span<const int> ranks) override {
    return MakeStagedGroup(inner_->Split(std::move(name), ranks), device_, options_);
  }

 private:
  static const char* At(const void* from, int64_t bytes) {
    return static_cast<const char*>(from) + bytes;
  }
  static char* At(void* to, int64_t bytes) { return static_cast<char*>(to) + bytes; }
  bool Owns(const void* address) const { return backend_.Owns(address); }

  // Whether the copy is only queued.
  bool Fetch(char* host, const void* from, int64_t bytes) const {
    if (bytes == 0) return false;
    if (Owns(from)) {
      backend_.CopyToHostLater(host, from, bytes);
      return true;
    }
    std::memcpy(host, from, static_cast<size_t>(bytes));
    return false;
  }
  void Deliver(void* to, const char* host, int64_t bytes) const {
    if (bytes == 0) return;
    if (Owns(to)) {
      backend_.CopyFromHostLater(to, host, bytes);
    } else {
      std::memcpy(to, host, static_cast<size_t>(bytes));
    }
  }

  // Cuts a collective of `elems` elements a rank, which need `elem_bytes` of host memory each, into
  // pieces. `fetch` says whether it queued something; `exchange` has to wait for that.
  template <typename FetchPiece, typename ExchangePiece, typename DeliverPiece>
  void InPieces(const CollectiveCall& call, int64_t elems, int64_t elem_bytes,
                const FetchPiece& fetch, const ExchangePiece& exchange,
                const DeliverPiece& deliver) {
    const int64_t most =
        std::max(options_.staging_bytes / 2 / elem_bytes / kAlignment * kAlignment, kAlignment);
    const int64_t pieces = std::max((elems + most - 1) / most, int64_t{1});
    staging_.Reserve(RoundUp(std::min(elems, most) * elem_bytes) + kAlignment);
    const auto piece = [&](int64_t i) {
      Piece p{.begin = i * most,
              .elems = std::min(most, elems - i * most),
              .host = staging_.half(static_cast<int>(i % 2)),
              .context = call.context};
      // Ranks that cut otherwise are told apart by what they say of themselves.
      if (pieces > 1) {
        absl::StrAppend(&p.context.module_path, p.context.module_path.empty() ? "" : " ", "piece ",
                        i + 1, " of ", pieces);
      }
      return p;
    };
    const auto begin = [&](const Piece& p, int64_t i) {
      staging_.AwaitFree(static_cast<int>(i % 2));
      const bool later = fetch(p);
      if (later) staging_.NoteUse(static_cast<int>(i % 2));
      return later;
    };
    Piece now = piece(0);
    bool queued = begin(now, 0);
    for (int64_t i = 0; i < pieces; ++i) {
      if (queued) backend_.queue().Synchronize();
      Piece next;
      if (i + 1 < pieces) {
        next = piece(i + 1);
        queued = begin(next, i + 1);
      }
      exchange(now);
      deliver(now);
      staging_.NoteUse(static_cast<int>(i % 2));
      now = std::move(next);
    }
  }

  const std::shared_ptr<ProcessGroup> inner_;
  const Device device_;
  const DeviceBackend& backend_;
  const StagedOptions options_;
  Staging staging_;
};

}  // namespace

std::unique_ptr<ProcessGroup> MakeStagedGroup(std::shared_ptr<ProcessGroup> inner, Device device,
                                              StagedOptions options) {
  SHERD_CHECK(device.defined() && device.backend() != nullptr, "a device that has no backend");
  return std::make_unique<StagedGroup>(std::move(inner), std::move(device), options);
}

}  // namespace sherd
