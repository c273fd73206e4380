// Encodes texts for bpe_compare_test.py: bpe_probe <tokenizer>. Reads, again and again, four bytes
// of a little-endian length and a text; writes a line of ids and a line of the bytes that they are
// decoded to, in hexadecimal.
#include <cstdio>
#include <string>
#include <vector>

#include "data/bpe_tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const absl::StatusOr<data::BpeTokenizer> tokenizer = data::BpeTokenizer::Load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return 1;
  }
  unsigned char length[4];
  while (std::fread(length, 1, 4, stdin) == 4) {
    std::string text(length[0] | length[1] << 8 | length[2] << 16, '\0');
    if (std::fread(text.data(), 1, text.size(), stdin) != text.size()) return 1;
    const std::vector<int32_t> ids = tokenizer->Encode(text);
    for (const int32_t id : ids) std::printf("%d ", id);
    std::printf("\n");
    for (const char c : tokenizer->Decode(ids)) std::printf("%02x", static_cast<unsigned char>(c));
    std::printf("\n");
  }
  return 0;
}
