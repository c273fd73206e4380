#include "sherd/runtime/comm/process_group.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sherd {
namespace {

// Whether [a, a + a_bytes) and [b, b + b_bytes) have a byte in common.
bool Overlap(const void* a, int64_t a_bytes, const void* b, int64_t b_bytes) {
  if (a_bytes == 0 || b_bytes == 0) return false;
  const auto a_begin = reinterpret_cast<uintptr_t>(a);
  const auto b_begin = reinterpret_cast<uintptr_t>(b);
  return a_begin < b_begin + static_cast<uintptr_t>(b_bytes) &&
         b_begin < a_begin + static_cast<uintptr_t>(a_bytes);
}

void CheckCount(int64_t count, int64_t unit, const char* what, const ErrorContext& context) {
  if (count < 0 || count > std::numeric_limits<int64_t>::max() / unit) {
    ThrowInvalidArgument(absl::StrCat(what, " is ", count, ", out of range"), context);
  }
}

void CheckBuffer(const void* data, int64_t bytes, const char* what, const ErrorContext& context) {
  if (data == nullptr && bytes > 0) {
    ThrowInvalidArgument(absl::StrCat(what, " is null, but has ", bytes, " bytes"), context);
  }
}

void CheckTypes(const WireTypes& types, const ErrorContext& context) {
  if (types.uniform()) return;
  for (DType dtype : {types.full, types.wire, types.shard}) {
    if (IsFloating(dtype)) continue;
    ThrowInvalidArgument(
        absl::StrCat("a reduction of ", std::string(NameOf(types.full)), " through ",
                     std::string(NameOf(types.wire)), " into ", std::string(NameOf(types.shard)),
                     ": ", std::string(NameOf(dtype)), " cannot be cast"),
        context);
  }
}

int64_t LargestOf(const WireTypes& types) {
  return std::max({SizeOf(types.full), SizeOf(types.wire), SizeOf(types.shard)});
}

}  // namespace

std::string_view NameOf(CollectiveOp op) {
  switch (op) {
    case CollectiveOp::kAllGather:
      return "all_gather";
    case CollectiveOp::kReduceScatter:
      return "reduce_scatter";
    case CollectiveOp::kAllReduce:
      return "all_reduce";
    case CollectiveOp::kBroadcast:
      return "broadcast";
    case CollectiveOp::kBarrier:
      return "barrier";
  }
  return "unknown collective";
}

std::string CollectiveCall::ToString() const {
  std::string text(NameOf(op));
  if (op != CollectiveOp::kBarrier) absl::StrAppend(&text, " of ", bytes, " bytes");
  if (op == CollectiveOp::kReduceScatter || op == CollectiveOp::kAllReduce) {
    absl::StrAppend(&text, " of ", std::string(NameOf(dtype)));
    if (!types.uniform()) {
      absl::StrAppend(&text, " for ", std::string(NameOf(types.full)), " to ",
                      std::string(NameOf(types.shard)));
    }
  }
  if (op == CollectiveOp::kBroadcast) absl::StrAppend(&text, " from rank ", root);
  absl::StrAppend(&text, " (#", sequence, ")");
  return text;
}

ProcessGroup::ProcessGroup(int rank, int size, std::string description)
    : rank_(rank), size_(size), description_(std::move(description)) {
  SHERD_CHECK(rank >= 0 && rank < size, absl::StrCat("rank ", rank, " of ", size));
}

template <typename Body>
void ProcessGroup::Run(CollectiveCall call, const Body& body) {
  std::unique_lock<std::mutex> lock(running_, std::try_to_lock);
  if (!lock.owns_lock()) {
    ThrowFailedPrecondition(
        absl::StrCat(description_, " is running another collective; use Fork for a second thread"),
        call.context);
  }
  call.sequence = ++sequence_;
  try {
    body(call);
  } catch (const Error& error) {
    ThrowError(error.With(call.context));
  }
}

namespace {

ErrorContext Named(ErrorContext context, CollectiveOp op) {
  if (context.op.empty()) context.op = std::string(NameOf(op));
  return context;
}

}  // namespace

void ProcessGroup::AllGather(const void* shard, void* full, int64_t bytes_per_rank,
                             ErrorContext context) {
  context = Named(std::move(context), CollectiveOp::kAllGather);
  CheckCount(bytes_per_rank, size_, "the number of bytes", context);
  CheckBuffer(shard, bytes_per_rank, "the shard", context);
  CheckBuffer(full, bytes_per_rank, "the full buffer", context);
  const bool in_place = shard == static_cast<char*>(full) + rank_ * bytes_per_rank;
  if (!in_place && Overlap(shard, bytes_per_rank, full, bytes_per_rank * size_)) {
    ThrowInvalidArgument("the shard overlaps the full buffer, but is not its own piece of it",
                         context);
  }
  Run({.op = CollectiveOp::kAllGather, .bytes = bytes_per_rank, .context = std::move(context)},
      [&](const CollectiveCall& call) { DoAllGather(call, shard, full); });
}

void ProcessGroup::ReduceScatter(const void* full, void* shard, int64_t elems_per_rank, DType dtype,
                                 bool add, ErrorContext context) {
  ReduceScatter(full, shard, elems_per_rank, {dtype, dtype, dtype}, add, std::move(context));
}

void ProcessGroup::ReduceScatter(const void* full, void* shard, int64_t elems_per_rank,
                                 const WireTypes& types, bool add, ErrorContext context) {
  context = Named(std::move(context), CollectiveOp::kReduceScatter);
  CheckTypes(types, context);
  CheckCount(elems_per_rank, LargestOf(types) * size_, "the number of elements", context);
  const int64_t full_bytes = elems_per_rank * SizeOf(types.full);
  const int64_t bytes = elems_per_rank * SizeOf(types.shard);
  CheckBuffer(full, full_bytes, "the full buffer", context);
  CheckBuffer(shard, bytes, "the shard", context);
  const bool in_place =
      types.full == types.shard && shard == static_cast<const char*>(full) + rank_ * full_bytes;
  if (in_place ? add && bytes > 0 : Overlap(shard, bytes, full, full_bytes * size_)) {
    ThrowInvalidArgument(in_place ? "a reduction in place cannot add to its own input"
                                  : "the shard overlaps the full buffer, but is not its own piece",
                         context);
  }
  Run({.op = CollectiveOp::kReduceScatter,
       .bytes = elems_per_rank * SizeOf(types.wire),
       .dtype = types.wire,
       .add = add,
       .types = types,
       .context = std::move(context)},
      [&](const CollectiveCall& call) { DoReduceScatter(call, full, shard); });
}

void ProcessGroup::AllReduce(void* data, int64_t elems, DType dtype, ErrorContext context) {
  AllReduce(data, elems, dtype, dtype, std::move(context));
}

void ProcessGroup::AllReduce(void* data, int64_t elems, DType dtype, DType wire,
                             ErrorContext context) {
  context = Named(std::move(context), CollectiveOp::kAllReduce);
  const WireTypes types{dtype, wire, dtype};
  CheckTypes(types, context);
  CheckCount(elems, LargestOf(types), "the number of elements", context);
  CheckBuffer(data, elems * SizeOf(dtype), "the buffer", context);
  Run({.op = CollectiveOp::kAllReduce,
       .bytes = elems * SizeOf(wire),
       .dtype = wire,
       .types = types,
       .context = std::move(context)},
      [&](const CollectiveCall& call) { DoAllReduce(call, data); });
}

void ProcessGroup::Broadcast(void* data, int64_t bytes, int root, ErrorContext context) {
  context = Named(std::move(context), CollectiveOp::kBroadcast);
  CheckCount(bytes, 1, "the number of bytes", context);
  CheckBuffer(data, bytes, "the buffer", context);
  if (root < 0 || root >= size_) {
    ThrowInvalidArgument(absl::StrCat("root ", root, " is not a rank of ", description_), context);
  }
  Run({.op = CollectiveOp::kBroadcast, .bytes = bytes, .root = root, .context = std::move(context)},
      [&](const CollectiveCall& call) { DoBroadcast(call, data); });
}

void ProcessGroup::Barrier(ErrorContext context) {
  context = Named(std::move(context), CollectiveOp::kBarrier);
  Run({.op = CollectiveOp::kBarrier, .context = std::move(context)},
      [&](const CollectiveCall& call) { DoBarrier(call); });
}

std::unique_ptr<ProcessGroup> ProcessGroup::Fork(std::string name) {
  return DoFork(std::move(name));
}

std::unique_ptr<ProcessGroup> ProcessGroup::Split(std::string name, std::span<const int> ranks) {
  const ErrorContext context{.op = "split"};
  const std::string list = absl::StrCat("'", name, "' of ranks [", absl::StrJoin(ranks, ", "), "]");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size_) {
      ThrowInvalidArgument(absl::StrCat(list, ": ", description_, " has no rank ", ranks[i]),
                           context);
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      ThrowInvalidArgument(absl::StrCat(list, " is not in ascending order"), context);
    }
  }
  if (std::find(ranks.begin(), ranks.end(), rank_) == ranks.end()) {
    ThrowInvalidArgument(absl::StrCat(list, " leaves out this rank, ", rank_), context);
  }
  return DoSplit(std::move(name), ranks);
}

}  // namespace sherd
