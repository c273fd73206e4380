#include "sherd/runtime/comm/internal/call_record.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/core/random.h"

namespace sherd::internal {
namespace {

bool SameCall(const CallRecord& a, const CallRecord& b) {
  return a.op == b.op && a.dtype == b.dtype && a.full_dtype == b.full_dtype &&
         a.shard_dtype == b.shard_dtype && a.root == b.root && a.bytes == b.bytes &&
         a.sequence == b.sequence;
}

int NameOf(int rank, std::span<const int> names) {
  const bool known = rank >= 0 && rank < static_cast<int>(names.size());
  return known ? names[static_cast<size_t>(rank)] : rank;
}

std::string TwoCalls(const NamedCall& a, const NamedCall& b, std::span<const int> names) {
  auto one = [&](const NamedCall& c) {
    return absl::StrCat("rank ", c.rank, " called ",
                        Describe(c.record, NameOf(c.record.root, names)), c.remark);
  };
  return absl::StrCat("ranks call different collectives: ", one(a), ", ", one(b));
}

}  // namespace

CallRecord RecordOf(const CollectiveCall& call) {
  CallRecord record{.op = static_cast<uint8_t>(call.op),
                    .dtype = static_cast<uint8_t>(call.dtype),
                    .full_dtype = static_cast<uint8_t>(call.types.full),
                    .shard_dtype = static_cast<uint8_t>(call.types.shard),
                    .root = call.root,
                    .bytes = call.bytes,
                    .sequence = call.sequence};
  const std::string& caller = call.context.module_path;
  if (caller.empty()) return record;
  record.caller_hash = std::max<uint64_t>(HashName(caller), 1);
  constexpr size_t kRoom = sizeof(record.caller) - 1;
  const std::string_view dots = caller.size() > kRoom ? "..." : "";
  const size_t kept = std::min(caller.size(), kRoom - dots.size());
  std::memcpy(record.caller, dots.data(), dots.size());
  std::memcpy(record.caller + dots.size(), caller.data() + caller.size() - kept, kept);
  return record;
}

std::string Describe(const CallRecord& record, int root_name) {
  const CollectiveCall call{
      .op = static_cast<CollectiveOp>(record.op),
      .bytes = record.bytes,
      .dtype = static_cast<DType>(record.dtype),
      .root = root_name,
      .sequence = record.sequence,
      .types = {static_cast<DType>(record.full_dtype), static_cast<DType>(record.dtype),
                static_cast<DType>(record.shard_dtype)}};
  std::string text = call.ToString();
  const size_t length = strnlen(record.caller, sizeof(record.caller));
  if (length > 0) absl::StrAppend(&text, " in ", std::string(record.caller, length));
  return text;
}

std::string Disagreement(std::span<const NamedCall> calls, std::span<const int> names) {
  const NamedCall* named = nullptr;
  for (const NamedCall& call : calls) {
    if (!SameCall(call.record, calls[0].record) || call.remark != calls[0].remark) {
      return TwoCalls(calls[0], call, names);
    }
    if (call.record.caller_hash == 0) continue;
    if (named == nullptr) named = &call;
    if (call.record.caller_hash != named->record.caller_hash) return TwoCalls(*named, call, names);
  }
  return "";
}

}  // namespace sherd::internal
