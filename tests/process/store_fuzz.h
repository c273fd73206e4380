#pragma once

#include <cstddef>
#include <cstdint>

// Plays `data` to the parsers of the store's protocol and to one conversation with its server, and
// ends the process, saying why, when one of these fails:
//   a stranger touches the table, or sees more than a refusal;
//   how the bytes are cut into pieces changes what a client sees;
//   the server sends something else than whole, legal responses;
//   a message that parses is written differently.
// libFuzzer calls it, and so does store_fuzz_test.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
