#pragma once

#include <string>
#include <string_view>

namespace sherd {

// Returns `text` as a JSON string, with its quotes: control characters, quotes and backslashes
// escaped, and each byte that is not UTF-8 replaced by U+FFFD. So whatever a file name or an error
// says, a reader can parse it.
// Threads: safe.
std::string JsonQuoted(std::string_view text);

}  // namespace sherd
