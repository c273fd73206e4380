// Folders of Hugging Face: weights and tokenizers.
#include <algorithm>

#include "absl/strings/match.h"
#include "data/bpe_tokenizer.h"
#include "data/wordpiece_tokenizer.h"
#include "sherd/runtime/io/safetensors_index.h"
#include "tests/fuzz/input_files.h"
#include "tests/fuzz/targets.h"

namespace sherd::fuzz {

void PlayIndex(std::string_view input) {
  InputFiles files;
  const std::string_view index = TakeSized(input), first = TakeSized(input);
  if (!index.empty()) files.Add("model.safetensors.index.json", index);
  if (!first.empty()) files.Add("a.safetensors", first);
  if (!input.empty()) files.Add("b.safetensors", input);
  const absl::StatusOr<SafetensorsIndex> folder = SafetensorsIndex::Open(files.folder());
  if (!folder.ok()) {
    Require(absl::StrContains(folder.status().message(), files.folder()), "an error names no file");
    return;
  }
  size_t entries = 0;
  for (const auto& file : folder->files()) {
    Require(std::string_view(file->name()).starts_with(files.folder()), "a file from elsewhere");
    entries += file->entries().size();
  }
  Require(entries == folder->tensors().size(), "tensors are missing");
  for (const auto& [name, place] : folder->tensors()) {
    Require(folder->Find(name) == &place, "a tensor is not found by its name");
    Require(place.file->Find(name) == place.entry, "a tensor is of another file");
    Touch(place.bytes());
  }
}

void PlayTokenizer(std::string_view input) {
  if (input.empty()) return;
  InputFiles files;
  const bool old = input[0] == 1;
  if (old) {
    input.remove_prefix(1);
    files.Add("vocab.json", TakeSized(input));
    files.Add("merges.txt", input);
  } else {
    files.Add("tokenizer.json", input);
  }
  const auto tokenizer = data::BpeTokenizer::Load(files.folder());
  if (!tokenizer.ok()) {
    Require(absl::StrContains(tokenizer.status().message(), files.folder()), "no file is named");
    return;
  }
  std::string text = "ab abab it's 12 \xC3\xA9\xF0\x9F\x98\x80  \n<s>\xFF<|endoftext|>";
  text += input.substr(0, 100);
  const std::vector<int32_t> ids = tokenizer->Encode(text);
  for (const int32_t id : ids) Require(id >= 0 && id < tokenizer->vocabulary(), "a token beyond");
  // White space at added tokens and bytes without a token may be gone; nothing else is added.
  Require(tokenizer->Encode(tokenizer->Decode(ids)).size() <= 4 * text.size(), "tokens grow");
}

void PlayWordPiece(std::string_view input) {
  if (input.empty()) return;
  InputFiles files;
  if (input[0] == 1) {
    input.remove_prefix(1);
    const std::string_view vocabulary = TakeSized(input);
    files.Add("vocab.txt", vocabulary);
    if (!input.empty()) files.Add("tokenizer_config.json", input);
  } else {
    files.Add("tokenizer.json", input);
  }
  const auto tokenizer = data::WordPieceTokenizer::Load(files.folder());
  if (!tokenizer.ok()) {
    Require(absl::StrContains(tokenizer.status().message(), files.folder()), "no file is named");
    return;
  }
  std::string text =
      "ab abab [SEP]\xC3\x89\xE4\xB8\xAD\xEA\xB0\x81\xF0\x9F\x98\x80 \n<s>\xFF[MASK]";
  text += input.substr(0, 100);
  const std::vector<int32_t> ids = tokenizer->Encode(text);
  for (const int32_t id : ids) Require(id >= 0 && id < tokenizer->vocabulary(), "a token beyond");
  const auto around = static_cast<size_t>(tokenizer->around());
  Require(ids.size() >= around, "tokens around a text are missing");
  // What is cut off is the end of what stands before the last tokens.
  const std::vector<int32_t> cut = tokenizer->Encode(text, tokenizer->around() + 3);
  Require(cut.size() == std::min(ids.size(), around + 3), "not as many tokens as may be");
  const auto different = std::mismatch(cut.begin(), cut.end(), ids.begin()).first;
  Require(std::equal(different, cut.end(), ids.end() - (cut.end() - different)), "cut elsewhere");
}

}  // namespace sherd::fuzz
