#include "exchange.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "number.h"

namespace emulated {
namespace {

// How a type is stored and what it is computed in.
template <typename T>
struct Plain {
  using Stored = T;
  using Value = T;
  static T Load(T x) { return x; }
  static T Store(T x) { return x; }
};
struct Bf16 {
  using Stored = uint16_t;
  using Value = float;
  static float Load(uint16_t x) { return FromBf16(x); }
  static uint16_t Store(float x) { return ToBf16(x); }
};
struct F16 {
  using Stored = uint16_t;
  using Value = float;
  static float Load(uint16_t x) { return FromF16(x); }
  static uint16_t Store(float x) { return ToF16(x); }
};

template <typename Type>
void Combine(const std::vector<Exchange>& ranks, size_t offset, size_t count,
             std::vector<char>* to) {
  using Stored = typename Type::Stored;
  using Value = typename Type::Value;
  to->resize(count * sizeof(Stored));
  auto* out = reinterpret_cast<Stored*>(to->data());
  const ncclRedOp_t op = ranks[0].op;
  // An average is a sum of numbers that were scaled before, by a factor of the type.
  const Value scale = Type::Load(Type::Store(static_cast<Value>(1.0 / ranks.size())));
  const bool scaled = op == ncclAvg && scale != 0;
  for (size_t i = 0; i < count; ++i) {
    Value sum{};
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      Value x = Type::Load(static_cast<const Stored*>(ranks[rank].send)[offset + i]);
      if (scaled) x = Type::Load(Type::Store(static_cast<Value>(x * scale)));
      if (rank == 0) {
        sum = x;
      } else if (op == ncclMax) {
        sum = std::max(sum, x);
      } else if (op == ncclMin) {
        sum = std::min(sum, x);
      } else {
        const auto next = static_cast<Value>(op == ncclProd ? sum * x : sum + x);
        sum = Type::Load(Type::Store(next));
      }
    }
    if (op == ncclAvg && !scaled) sum = static_cast<Value>(sum / static_cast<Value>(ranks.size()));
    out[i] = Type::Store(sum);
  }
}

void CombineAny(const std::vector<Exchange>& ranks, size_t offset, size_t count,
                std::vector<char>* to) {
  switch (ranks[0].type) {
    case ncclInt8:
      return Combine<Plain<int8_t>>(ranks, offset, count, to);
    case ncclUint8:
      return Combine<Plain<uint8_t>>(ranks, offset, count, to);
    case ncclInt32:
      return Combine<Plain<int32_t>>(ranks, offset, count, to);
    case ncclUint32:
      return Combine<Plain<uint32_t>>(ranks, offset, count, to);
    case ncclInt64:
      return Combine<Plain<int64_t>>(ranks, offset, count, to);
    case ncclUint64:
      return Combine<Plain<uint64_t>>(ranks, offset, count, to);
    case ncclFloat16:
      return Combine<F16>(ranks, offset, count, to);
    case ncclFloat32:
      return Combine<Plain<float>>(ranks, offset, count, to);
    case ncclFloat64:
      return Combine<Plain<double>>(ranks, offset, count, to);
    case ncclBfloat16:
      return Combine<Bf16>(ranks, offset, count, to);
  }
}

bool SameCall(const Exchange& a, const Exchange& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.op == b.op &&
         a.peer == b.peer;
}

std::string Describe(int rank, const Exchange& call) {
  const char* names[] = {"ncclAllReduce", "ncclReduceScatter", "ncclAllGather",
                         "ncclBroadcast", "ncclSend",          "ncclRecv"};
  return "rank " + std::to_string(rank) + " calls " + names[call.kind] + " of " +
         std::to_string(call.count) + " numbers of type " + std::to_string(call.type);
}

}  // namespace

size_t SizeOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

void RunCollective(const std::vector<Exchange>& ranks) {
  const Exchange& first = ranks[0];
  const size_t bytes = first.count * SizeOf(first.type);
  if (bytes == 0) return;
  std::vector<std::vector<char>> results(ranks.size());
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<char>& result = results[rank];
    const auto append = [&](const Exchange& from) {
      const char* data = static_cast<const char*>(from.send);
      result.insert(result.end(), data, data + bytes);
    };
    if (first.kind == Exchange::kAllGather) {
      for (const Exchange& from : ranks) append(from);
    } else if (first.kind == Exchange::kBroadcast) {
      append(ranks[first.peer]);
    } else if (first.kind == Exchange::kReduceScatter) {
      CombineAny(ranks, rank * first.count, first.count, &result);
    } else if (rank == 0) {
      CombineAny(ranks, 0, first.count, &result);
    } else {
      result = results[0];
    }
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::memcpy(ranks[rank].recv, results[rank].data(), results[rank].size());
  }
}

Clique::Clique(int size) {
  for (int rank = 0; rank < size; ++rank) members_.push_back(std::make_unique<Member>());
}

ncclResult_t Clique::Join(int rank, int size, int device, const std::string& host) {
  std::lock_guard lock(mutex_);
  if (size != this->size() || rank >= size || members_[rank]->device >= 0) return ncclInvalidUsage;
  members_[rank]->device = device;
  members_[rank]->host = host;
  if (++joined_ < size) return ncclSuccess;
  ncclResult_t result = ncclSuccess;
  for (int i = 0; i < size; ++i) {
    for (int j = 0; j < i; ++j) {
      const bool same = members_[i]->device == members_[j]->device;
      if (same && members_[i]->host == members_[j]->host) result = ncclInvalidUsage;
    }
  }
  for (const auto& member : members_) member->state.store(result, std::memory_order_relaxed);
  changed_.notify_all();
  return ncclSuccess;
}

void Clique::WaitForAll(int rank) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return members_[rank]->state.load() != ncclInProgress; });
}

void Clique::Run(int rank, const std::vector<Exchange>& calls) {
  Member& self = *members_[rank];
  std::vector<Pending> pending(calls.size());
  std::unique_lock lock(mutex_);
  if (!self.aborted && !failed_) {
    for (size_t i = 0; i < calls.size(); ++i) {
      pending[i].call = calls[i];
      if (!failed_) Post(rank, &pending[i]);
    }
    // A rank whose peers are gone waits on, as a kernel of NCCL does, until it is aborted itself.
    changed_.wait(lock, [&] {
      return self.aborted || failed_ ||
             std::all_of(pending.begin(), pending.end(),
                         [](const Pending& one) { return one.done; });
    });
  }
  self.ended.fetch_add(1, std::memory_order_relaxed);
}

void Clique::Post(int rank, Pending* call) {
  if (call->call.kind < Exchange::kSend) return PostCollective(rank, call);
  const bool sends = call->call.kind == Exchange::kSend;
  const int peer = call->call.peer;
  const auto way = sends ? std::pair(rank, peer) : std::pair(peer, rank);
  (sends ? sends_ : receives_)[way].push_back(call);
  auto& from = sends_[way];
  auto& to = receives_[way];
  if (from.empty() || to.empty()) return;
  const Exchange& source = from.front()->call;
  const Exchange& target = to.front()->call;
  if (source.count != target.count || source.type != target.type) {
    return Fail(Describe(way.first, source) + ", " + Describe(way.second, target));
  }
  const size_t bytes = source.count * SizeOf(source.type);
  if (bytes > 0) std::memmove(target.recv, source.send, bytes);
  from.front()->done = to.front()->done = true;
  from.pop_front();
  to.pop_front();
  changed_.notify_all();
}

void Clique::PostCollective(int rank, Pending* call) {
  Round& round = rounds_[call->call.sequence];
  round.calls.resize(members_.size());
  round.calls[rank] = call;
  if (++round.arrived < size()) return;
  std::vector<Exchange> ranks;
  for (int i = 0; i < size(); ++i) {
    ranks.push_back(round.calls[i]->call);
    if (!SameCall(ranks[0], ranks[i])) {
      return Fail(Describe(0, ranks[0]) + ", " + Describe(i, ranks[i]));
    }
  }
  RunCollective(ranks);
  for (Pending* each : round.calls) each->done = true;
  rounds_.erase(call->call.sequence);
  changed_.notify_all();
}

// NCCL would hang or mix up memory; here all ranks learn that their calls differ, and get no data.
void Clique::Fail(const std::string& why) {
  std::fprintf(stderr, "cuda_emulator: NCCL: %s\n", why.c_str());
  for (const auto& member : members_) {
    member->state.store(ncclInternalError, std::memory_order_relaxed);
  }
  failed_ = true;
  changed_.notify_all();
}

// What the rank has posted is taken back, so its peers never meet it.
void Clique::Abort(int rank) {
  std::lock_guard lock(mutex_);
  members_[rank]->aborted = true;
  for (auto& [sequence, round] : rounds_) {
    if (static_cast<int>(round.calls.size()) > rank && round.calls[rank] != nullptr) {
      round.calls[rank] = nullptr;
      --round.arrived;
    }
  }
  for (auto& [way, calls] : sends_) {
    if (way.first == rank) calls.clear();
  }
  for (auto& [way, calls] : receives_) {
    if (way.second == rank) calls.clear();
  }
  changed_.notify_all();
}

}  // namespace emulated
