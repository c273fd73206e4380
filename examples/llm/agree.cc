#include "llm/agree.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace llm {

absl::Status AgreeOn(sherd::World& world, const absl::Status& status) {
  static constexpr char kKey[] = "llm/failure/";
  std::vector<int64_t> failed(static_cast<size_t>(world.size()), 0);
  if (!status.ok()) {
    failed[static_cast<size_t>(world.rank())] = static_cast<int64_t>(status.code());
    sherd::ThrowIfError(
        world.store().Set(absl::StrCat(kKey, world.rank()), std::string(status.message())));
  }
  world.group().AllReduce(failed.data(), world.size(), sherd::DType::kI64, {.op = "agree"});
  for (int rank = 0; rank < world.size(); ++rank) {
    if (failed[static_cast<size_t>(rank)] == 0) continue;
    const absl::StatusOr<std::string> text =
        world.store().Get(absl::StrCat(kKey, rank), absl::Seconds(10));
    sherd::ThrowIfError(text.status());
    return absl::Status(static_cast<absl::StatusCode>(failed[static_cast<size_t>(rank)]),
                        rank == 0 ? *text : absl::StrCat("rank ", rank, ": ", *text));
  }
  return absl::OkStatus();
}

}  // namespace llm
