#pragma once

#include <string_view>

// Each target plays one input, as it would stand in a file, to a reader of files. It ends the
// process, saying why, when the reader accepts what it promises to refuse, refuses without saying
// where, hands out something else than the file has, or writes what it cannot read again. Crashes,
// reads out of bounds and memory out of proportion are for sanitizers and libFuzzer to find, which
// read all that a reader hands out.
namespace sherd::fuzz {

void PlaySafetensors(std::string_view input);
// Any JSON: config.json, index.json, tokenizer.json and manifests begin here.
void PlayJson(std::string_view input);
void PlayManifest(std::string_view input);
// A folder of models: the first two bytes are the size of its index, which comes next, the next two
// that of a.safetensors, and the rest is b.safetensors; what is empty is not there.
void PlayIndex(std::string_view input);
// tokenizer.json, or where the first byte is 1, vocab.json, as long as the next two bytes say, and
// merges.txt.
void PlayTokenizer(std::string_view input);
// tokenizer.json, or where the first byte is 1, vocab.txt, as long as the next two bytes say, and
// tokenizer_config.json, unless that is empty.
void PlayWordPiece(std::string_view input);
// The first byte says which format is asked for, the second the vocabulary, the third the id that
// ends documents; of a Megatron pair the next two are the size of the index, which comes first.
void PlayTokenFile(std::string_view input);
void PlayJsonLines(std::string_view input);
// config.json.
void PlayConfig(std::string_view input);
// What the language model is trained on: the first byte says of which kind it is, the second the
// vocabulary; of texts and lines with a tokenizer the next two are the size of tokenizer.json,
// which comes first.
void PlayDataset(std::string_view input);

struct Target {
  const char* name;  // of its folder in corpus/
  void (*play)(std::string_view input);
};
inline constexpr Target kTargets[] = {
    {"safetensors", PlaySafetensors}, {"json", PlayJson},
    {"manifest", PlayManifest},       {"index", PlayIndex},
    {"config", PlayConfig},           {"tokenizer", PlayTokenizer},
    {"wordpiece", PlayWordPiece},     {"token_file", PlayTokenFile},
    {"json_lines", PlayJsonLines},    {"dataset", PlayDataset}};

}  // namespace sherd::fuzz
