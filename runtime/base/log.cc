#include "sherd/runtime/base/log.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace sherd {

LogSink StderrLogSink() {
  return [](const LogRecord& record) {
    const char* level = record.level == LogLevel::kError     ? "error: "
                        : record.level == LogLevel::kWarning ? "warning: "
                                                             : "";
    std::string line = "[sherd";
    if (record.rank >= 0) absl::StrAppend(&line, " rank ", record.rank);
    absl::StrAppend(&line, "] ", level);
    line.append(record.text);
    line.push_back('\n');
    std::fwrite(line.data(), 1, line.size(), stderr);
  };
}

}  // namespace sherd
