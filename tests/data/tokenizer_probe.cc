// Encodes texts for the comparisons with other packages: tokenizer_probe <kind> <argument>. Reads,
// again and again, four bytes of a little-endian length and a text; writes two lines for each:
//   bpe <tokenizer>        ids, and in hexadecimal the bytes that they are decoded to
//   wordpiece <tokenizer>  ids, and those that are left when there may be 16
//   bert <flags>           in hexadecimal what NormalizeBert makes of it, and the words of that;
//                          flags are of 0 and 1, in the order of BertRules
#include <cstdio>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/bert_text.h"
#include "data/bpe_tokenizer.h"
#include "data/wordpiece_tokenizer.h"

namespace {

using Probe = std::function<void(std::string_view text)>;

void PrintIds(const std::vector<int32_t>& ids) {
  for (const int32_t id : ids) std::printf("%d ", id);
  std::printf("\n");
}

void PrintBytes(std::string_view bytes) {
  for (const char c : bytes) std::printf("%02x", static_cast<unsigned char>(c));
}

template <typename Tokenizer, typename Print>
std::optional<Probe> ProbeOf(const std::string& file, Print print) {
  const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load(file);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
    return std::nullopt;
  }
  return [tokenizer = *tokenizer, print](std::string_view text) { print(tokenizer, text); };
}

std::optional<Probe> ProbeOf(const std::string& kind, const std::string& argument) {
  if (kind == "bpe") {
    return ProbeOf<data::BpeTokenizer>(argument, [](const auto& tokenizer, std::string_view text) {
      const std::vector<int32_t> ids = tokenizer.Encode(text);
      PrintIds(ids);
      PrintBytes(tokenizer.Decode(ids));
      std::printf("\n");
    });
  }
  if (kind == "wordpiece") {
    return ProbeOf<data::WordPieceTokenizer>(argument,
                                             [](const auto& tokenizer, std::string_view text) {
                                               PrintIds(tokenizer.Encode(text));
                                               PrintIds(tokenizer.Encode(text, 16));
                                             });
  }
  if (kind != "bert" || argument.size() != 4) return std::nullopt;
  const data::BertRules rules = {argument[0] == '1', argument[1] == '1', argument[2] == '1',
                                 argument[3] == '1'};
  return [rules](std::string_view text) {
    const std::string normalized = data::NormalizeBert(text, rules);
    PrintBytes(normalized);
    std::printf("\n");
    std::vector<std::string_view> words;
    data::SplitBert(normalized, words);
    for (const std::string_view word : words) {
      PrintBytes(word);
      std::printf(" ");
    }
    std::printf("\n");
  };
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::optional<Probe> probe = ProbeOf(std::string(argv[1]), argv[2]);
  if (!probe) return 1;
  unsigned char length[4];
  while (std::fread(length, 1, 4, stdin) == 4) {
    std::string text(length[0] | length[1] << 8 | length[2] << 16, '\0');
    if (std::fread(text.data(), 1, text.size(), stdin) != text.size()) return 1;
    (*probe)(text);
  }
  return 0;
}
