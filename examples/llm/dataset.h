#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/bpe_tokenizer.h"
#include "data/byte_tokenizer.h"
#include "data/documents.h"
#include "data/samples.h"
#include "llm/options.h"

namespace llm {

// What a run learns and what it is measured on: the last twentieth of the data is held out.
//
// The files are of one kind, which the ends of their names tell:
//   NAME.bin     tokens of a vocabulary that the options name (data::TokenFile)
//   NAME.jsonl   a sample a line, each a row of its own (data::ReadSamples)
//   others       text, a token a byte, or of the tokenizer in the folder of Options::init
// Texts and token files are documents, which are packed into rows; see data::Packing.
class Dataset {
 public:
  // Opens Options::data. Errors: those of data::TextFile, TokenFile, ReadSamples and BpeTokenizer;
  //   kInvalidArgument naming the files of different kinds, the token file without a vocabulary,
  //   the line of a text among samples of a vocabulary that is smaller than that of bytes or lacks
  //   a token of the tokenizer, the line of a sample that is longer than Options::seq, both numbers
  //   when there are fewer tokens than one window of seq + 1 for each part, or a single sample.
  static absl::StatusOr<Dataset> Open(const Options& options);
  // The same of a text at hand. Errors: kInvalidArgument, too few bytes.
  static absl::StatusOr<Dataset> FromText(const std::string& text, int64_t seq);

  Dataset(Dataset&&) noexcept;
  Dataset& operator=(Dataset&&) noexcept;
  ~Dataset();

  // Rows of at most Options::seq tokens. Ownership: live as long as this object or one moved from
  // it.
  const data::Samples& train() const;
  const data::Samples& validation() const;
  // The tokens of each part, padding not counted.
  int64_t train_tokens() const;
  int64_t validation_tokens() const;

  int64_t vocabulary() const;
  // What text was made tokens with; null where it was not.
  const data::BpeTokenizer* tokenizer() const;
  // Whether tokens are bytes of text, and what one is called: "byte" or "token".
  bool bytes() const { return tokenizer() == nullptr && vocabulary() == data::kByteVocabulary; }
  const char* unit() const { return bytes() ? "byte" : "token"; }

 private:
  struct Parts;
  explicit Dataset(std::unique_ptr<Parts> parts);
  static absl::StatusOr<Dataset> FromDocuments(
      std::vector<std::unique_ptr<const data::Documents>> files, int64_t vocabulary, int64_t seq);
  static absl::StatusOr<Dataset> FromFiles(const Options& options,
                                           const data::BpeTokenizer* tokenizer);
  static absl::StatusOr<Dataset> FromSamples(const Options& options,
                                             const data::BpeTokenizer* tokenizer);

  std::unique_ptr<Parts> parts_;
};

// The rows [0, samples.size()), or `most` of them spread evenly when that is fewer.
// REQUIRES: most >= 1.
std::vector<int64_t> SpreadRows(const data::Samples& samples, int64_t most);

}  // namespace llm
