#pragma once

#include <cstddef>
#include <string_view>

namespace sherd {

// The bytes of the UTF-8 sequence at the beginning of `text`, or 0 if none begins there, as RFC
// 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF. REQUIRES: text is not
// empty.
size_t Utf8SequenceBytes(std::string_view text);

// How many bytes at the beginning of `text` are valid UTF-8. All of them when it equals
// text.size().
size_t ValidUtf8Bytes(std::string_view text);

}  // namespace sherd
