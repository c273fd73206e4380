#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/documents.h"
#include "sherd/runtime/io/mapped_file.h"

namespace data {

// How token files are written. All numbers are little-endian.
enum class TokenFormat {
  kDetect,    // kMegatron where NAME.idx lies beside NAME.bin, else kLlmC by its magic number, else
              // kRaw16
  kRaw16,     // u16 and nothing else, as nanoGPT writes
  kLlmC,      // 256 i32, magic, version and tokens first, then u16 or u32, as llm.c writes
  kMegatron,  // NAME.bin, and NAME.idx that has the width and the sequences, as Megatron-LM writes
};

// Documents of tokens in a file that is mapped, not read.
class TokenFile : public Documents {
 public:
  // Opens `name`, a .bin file, and looks at every token once. With `end`, a document ends behind
  // each token of that id; without, a Megatron pair has those of its index and other files have
  // one. Cost: reads the file once; memory of eight bytes a document, in proportion to the files.
  // Errors: those of MappedFile::Open; kInvalidArgument naming file, position and value of a token
  //   outside [0, vocabulary), of a size that is no whole number of tokens, of a header or an index
  //   that contradicts itself or the size.
  static absl::StatusOr<TokenFile> Open(const std::string& name, int64_t vocabulary,
                                        TokenFormat format = TokenFormat::kDetect,
                                        std::optional<int64_t> end = std::nullopt);

  std::span<const int64_t> bounds() const override { return bounds_; }
  void Copy(int64_t begin, std::span<int64_t> out) const override;
  // One token. REQUIRES: 0 <= i < tokens().
  int64_t At(int64_t i) const;

 private:
  explicit TokenFile(sherd::MappedFile file) : file_(std::move(file)) {}
  absl::Status ReadLlmCHeader();
  absl::Status ReadIndex(const std::string& name);
  absl::Status SetWidth(int64_t header_bytes, int width_bytes, bool is_signed);
  absl::Status CheckTokens(int64_t vocabulary, std::optional<int64_t> end);

  sherd::MappedFile file_;
  int64_t header_bytes_ = 0;
  int width_bytes_ = 2;
  bool is_signed_ = false;
  int64_t count_ = 0;
  std::vector<int64_t> bounds_;
};

}  // namespace data
