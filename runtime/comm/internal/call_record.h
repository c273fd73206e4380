#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "sherd/runtime/comm/process_group.h"

namespace sherd::internal {

// What ranks tell each other about a call; sent as it lies in memory.
struct CallRecord {
  uint8_t op = 0;
  uint8_t dtype = 0;
  uint8_t full_dtype = 0;
  uint8_t shard_dtype = 0;
  int32_t root = 0;
  int64_t bytes = 0;
  uint64_t sequence = 0;
  uint64_t caller_hash = 0;  // of the whole text; 0: the caller did not say who it is
  char caller[80] = {};      // the end of ErrorContext::module_path
};
static_assert(sizeof(CallRecord) == 112);

CallRecord RecordOf(const CollectiveCall& call);

// "reduce_scatter of 64 bytes of f32 (#5) in unit 'b'". `root_name` is what to call the root.
std::string Describe(const CallRecord& record, int root_name);

// One rank's call and what it is called in messages.
struct NamedCall {
  int rank = 0;
  CallRecord record;
  std::string remark;  // what else differs
};

// The first two calls that are not the same, "" when all are: "ranks call different collectives:
// rank 0 called ..., rank 2 called ...".
//
// Callers are compared among those that say who they are. Remarks are compared as they are.
// `names` gives a rank of the group its name, by which roots are named, too.
std::string Disagreement(std::span<const NamedCall> calls, std::span<const int> names);

}  // namespace sherd::internal
