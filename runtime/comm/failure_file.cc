#include "sherd/runtime/comm/failure_file.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "sherd/runtime/base/json_text.h"
#include "sherd/runtime/base/new_file.h"

namespace sherd {

bool FailedElsewhere(const absl::Status& why) {
  switch (why.code()) {
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnavailable:
      return true;
    default:
      return false;
  }
}

absl::Status WriteErrorFile(const std::string& path, const absl::Status& why) {
  if (path.empty()) return absl::OkStatus();
  const int64_t seconds = absl::ToUnixSeconds(absl::Now()) + (FailedElsewhere(why) ? 1 : 0);
  const std::string text(why.message());
  // The agent wants the time as a string.
  return WriteWholeFile(
      path, absl::StrCat("{\"message\":{\"message\":",
                         JsonQuoted(absl::StrCat(absl::StatusCodeToString(why.code()), ": ", text)),
                         ",\"extraInfo\":{\"py_callstack\":", JsonQuoted(text), ",\"timestamp\":\"",
                         seconds, "\"}}}\n"));
}

}  // namespace sherd
