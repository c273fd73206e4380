#include "sherd/runtime/comm/agree.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sherd {

std::vector<std::string> GatherTexts(ProcessGroup& group, const std::string& text,
                                     const ErrorContext& context) {
  const auto ranks = static_cast<size_t>(group.size());
  const auto mine = static_cast<int64_t>(text.size());
  std::vector<int64_t> sizes(ranks, 0);
  group.AllGather(&mine, sizes.data(), sizeof(mine), context);
  const auto longest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  if (longest == 0) return std::vector<std::string>(ranks);
  std::string padded = text;
  padded.resize(longest, '\0');
  std::string all(longest * ranks, '\0');
  group.AllGather(padded.data(), all.data(), static_cast<int64_t>(longest), context);
  std::vector<std::string> texts;
  for (size_t r = 0; r < ranks; ++r) {
    texts.push_back(all.substr(r * longest, static_cast<size_t>(sizes[r])));
  }
  return texts;
}

absl::Status AgreeOn(ProcessGroup& group, const absl::Status& status, const ErrorContext& context) {
  // The code comes first, as one byte; an OK status has no text at all.
  std::string mine;
  if (!status.ok()) {
    mine = static_cast<char>(status.code()) + std::string(status.message());
  }
  const std::vector<std::string> all = GatherTexts(group, mine, context);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].empty()) continue;
    const auto code = static_cast<absl::StatusCode>(all[r][0]);
    const bool alike = std::equal(all.begin() + 1, all.end(), all.begin());
    const std::string who = alike ? std::string() : absl::StrCat("rank ", r, ": ");
    return absl::Status(code, who + all[r].substr(1));
  }
  return absl::OkStatus();
}

}  // namespace sherd
