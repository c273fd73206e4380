#pragma once

#include <string_view>

// Each target plays one input, as it would stand in a file, to a reader of files. It ends the
// process, saying why, when the reader accepts what it promises to refuse, refuses without saying
// where, hands out something else than the file has, or writes what it cannot read again. Crashes,
// reads out of bounds and memory out of proportion are for sanitizers and libFuzzer to find, which
// read all that a reader hands out.
namespace sherd::fuzz {

void PlaySafetensors(std::string_view input);
// Any JSON: config.json, *.index.json, tokenizer.json and manifests begin here.
void PlayJson(std::string_view input);
void PlayManifest(std::string_view input);
// The first byte says which format is asked for, the second the vocabulary, the third the id that
// ends documents; of a Megatron pair the next two are the size of the index, which comes first.
void PlayTokenFile(std::string_view input);
void PlayJsonLines(std::string_view input);

struct Target {
  const char* name;  // of its folder in corpus/
  void (*play)(std::string_view input);
};
inline constexpr Target kTargets[] = {{"safetensors", PlaySafetensors},
                                      {"json", PlayJson},
                                      {"manifest", PlayManifest},
                                      {"token_file", PlayTokenFile},
                                      {"json_lines", PlayJsonLines}};

}  // namespace sherd::fuzz
