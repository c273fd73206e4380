#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sherd::testing {

// What the files of a folder have in them, by name.
std::vector<std::string> ContentsOf(const std::string& folder);

// The input cut, doubled, or overwritten with a byte or with a length near a limit, or followed by
// a piece of `other`: three times, as `random` says.
std::string Changed(std::string input, const std::string& other, uint64_t random);

}  // namespace sherd::testing
