#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace sherd {

enum class LogLevel { kInfo, kWarning, kError };

// One line the library has to say. `rank` is the world rank, -1 where none is known yet.
struct LogRecord {
  LogLevel level = LogLevel::kInfo;
  int rank = -1;
  std::string_view text;  // valid during the call only
};

// Where log lines go: a function the embedding program supplies.
//
// Threads: may be called from any thread, also from several at once. An empty sink is silent.
// Nothing of this library is ever written to stdout.
using LogSink = std::function<void(const LogRecord&)>;

// A sink that writes "[sherd rank 1] warning: text" lines to stderr.
LogSink StderrLogSink();

}  // namespace sherd
