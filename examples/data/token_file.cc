#include "data/token_file.h"

#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"

namespace data {
namespace {

constexpr int64_t kLlmCHeaderBytes = 256 * 4;
constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr int64_t kIndexHeaderBytes = 9 + 8 + 1 + 8 + 8;

// Files need not be aligned. REQUIRES: the bytes are there.
template <typename T>
T Load(std::span<const uint8_t> bytes, int64_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

absl::Status Wrong(const std::string& file, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("token file ", file, " ", why));
}

std::string IndexName(const std::string& name) {
  return std::filesystem::path(name).replace_extension(".idx").string();
}

TokenFormat Detect(const sherd::MappedFile& file) {
  std::error_code error;
  if (std::filesystem::exists(IndexName(file.name()), error)) return TokenFormat::kMegatron;
  if (file.bytes().size() < static_cast<size_t>(kLlmCHeaderBytes)) return TokenFormat::kRaw16;
  const auto magic = Load<int32_t>(file.bytes(), 0);
  return magic == 20240520 || magic == 20240801 ? TokenFormat::kLlmC : TokenFormat::kRaw16;
}

}  // namespace

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& name, int64_t vocabulary,
                                          TokenFormat format, std::optional<int64_t> end) {
  absl::StatusOr<sherd::MappedFile> mapped = sherd::MappedFile::Open("token file", name);
  if (!mapped.ok()) return mapped.status();
  TokenFile file(*std::move(mapped));
  if (format == TokenFormat::kDetect) format = Detect(file.file_);
  absl::Status status = format == TokenFormat::kLlmC       ? file.ReadLlmCHeader()
                        : format == TokenFormat::kMegatron ? file.ReadIndex(IndexName(name))
                                                           : file.SetWidth(0, 2, false);
  if (status.ok()) status = file.CheckTokens(vocabulary, end);
  if (!status.ok()) return status;
  return file;
}

int64_t TokenFile::At(int64_t i) const {
  const int64_t at = header_bytes_ + i * width_bytes_;
  const std::span<const uint8_t> bytes = file_.bytes();
  switch (width_bytes_) {
    case 1:
      return Load<uint8_t>(bytes, at);
    case 2:
      return is_signed_ ? int64_t{Load<int16_t>(bytes, at)} : int64_t{Load<uint16_t>(bytes, at)};
    case 4:
      return is_signed_ ? int64_t{Load<int32_t>(bytes, at)} : int64_t{Load<uint32_t>(bytes, at)};
    default:
      return Load<int64_t>(bytes, at);
  }
}

void TokenFile::Copy(int64_t begin, std::span<int64_t> out) const {
  for (size_t i = 0; i < out.size(); ++i) out[i] = At(begin + static_cast<int64_t>(i));
}

absl::Status TokenFile::SetWidth(int64_t header_bytes, int width_bytes, bool is_signed) {
  header_bytes_ = header_bytes;
  width_bytes_ = width_bytes;
  is_signed_ = is_signed;
  const int64_t bytes = static_cast<int64_t>(file_.bytes().size()) - header_bytes;
  if (bytes % width_bytes != 0) {
    return Wrong(file_.name(),
                 absl::StrCat("has ", bytes, " bytes of tokens, no multiple of ", width_bytes));
  }
  count_ = bytes / width_bytes;
  if (count_ == 0) return Wrong(file_.name(), "has no tokens");
  return absl::OkStatus();
}

absl::Status TokenFile::ReadLlmCHeader() {
  const std::span<const uint8_t> bytes = file_.bytes();
  if (bytes.size() < static_cast<size_t>(kLlmCHeaderBytes)) {
    return Wrong(file_.name(), absl::StrCat("ends inside the header: ", bytes.size(), " bytes"));
  }
  const auto magic = Load<int32_t>(bytes, 0), version = Load<int32_t>(bytes, 4);
  const bool narrow = magic == 20240520 && version == 1;
  if (!narrow && !(magic == 20240801 && version == 7)) {
    return Wrong(file_.name(), absl::StrCat("has magic ", magic, " and version ", version,
                                            ", neither 20240520 and 1 nor 20240801 and 7"));
  }
  if (absl::Status status = SetWidth(kLlmCHeaderBytes, narrow ? 2 : 4, false); !status.ok()) {
    return status;
  }
  const auto told = Load<int32_t>(bytes, 8);
  if (told != count_) {
    return Wrong(file_.name(), absl::StrCat("has ", count_, " tokens, its header says ", told));
  }
  return absl::OkStatus();
}

absl::Status TokenFile::ReadIndex(const std::string& name) {
  const absl::StatusOr<sherd::MappedFile> index = sherd::MappedFile::Open("token index", name);
  if (!index.ok()) return index.status();
  const std::span<const uint8_t> bytes = index->bytes();
  const auto size = static_cast<int64_t>(bytes.size());
  if (size < kIndexHeaderBytes || !index->text().starts_with(kIndexMagic)) {
    return Wrong(name, "has no header MMIDIDX");
  }
  if (const auto version = Load<uint64_t>(bytes, 9); version != 1) {
    return Wrong(name, absl::StrCat("has version ", version, ", not 1"));
  }
  constexpr int kWidths[] = {0, 1, 0, 2, 4, 8, 0, 0, 2};  // by code; 0: no type of tokens here
  const uint8_t code = bytes[17];
  if (code > 8 || kWidths[code] == 0) {
    return Wrong(name, absl::StrCat("has type code ", int{code}, ", which is none of tokens"));
  }
  if (absl::Status s = SetWidth(0, kWidths[code], code != 1 && code != 8); !s.ok()) return s;
  const auto sequences = Load<uint64_t>(bytes, 18), documents = Load<uint64_t>(bytes, 26);
  const auto room = static_cast<uint64_t>(size - kIndexHeaderBytes);
  // Bounded before they are multiplied, which could wrap around.
  if (sequences > room / 12 || documents > room / 8 || sequences * 12 + documents * 8 != room) {
    return Wrong(name, absl::StrCat("of ", size, " bytes cannot hold ", sequences,
                                    " sequences and ", documents, " document bounds"));
  }
  const auto n = static_cast<int64_t>(sequences);
  std::vector<int64_t> starts = {0};  // of each sequence
  for (int64_t i = 0; i < n; ++i) {
    const auto length = Load<int32_t>(bytes, kIndexHeaderBytes + 4 * i);
    const auto pointer = Load<int64_t>(bytes, kIndexHeaderBytes + 4 * n + 8 * i);
    if (length < 0 || pointer != starts.back() * width_bytes_) {
      return Wrong(name, absl::StrCat("has sequence ", i, " of ", length, " tokens at byte ",
                                      pointer, ", due at byte ", starts.back() * width_bytes_));
    }
    starts.push_back(starts.back() + length);
  }
  if (starts.back() != count_) {
    return Wrong(
        name, absl::StrCat("has sequences of ", starts.back(), " tokens, the tokens are ", count_));
  }
  int64_t before = 0;
  for (int64_t d = 0; d < static_cast<int64_t>(documents); ++d) {
    const auto bound = Load<int64_t>(bytes, kIndexHeaderBytes + 12 * n + 8 * d);
    const bool last = d + 1 == static_cast<int64_t>(documents);
    if (bound < before || bound > n || (d == 0 && bound != 0) || (last && bound != n)) {
      return Wrong(name, absl::StrCat("has document bound ", d, " at sequence ", bound, " of ", n));
    }
    before = bound;
    bounds_.push_back(starts[static_cast<size_t>(bound)]);
  }
  if (bounds_.size() < 2) return Wrong(name, "has no document");
  return absl::OkStatus();
}

absl::Status TokenFile::CheckTokens(int64_t vocabulary, std::optional<int64_t> end) {
  if (end.has_value() || bounds_.empty()) bounds_ = {0};
  const bool whole = bounds_.size() == 1;
  for (int64_t i = 0; i < count_; ++i) {
    const int64_t token = At(i);
    if (token < 0 || token >= vocabulary) {
      return Wrong(file_.name(), absl::StrCat("has token ", token, " at position ", i,
                                              ", outside [0, ", vocabulary, ")"));
    }
    if (end == token) bounds_.push_back(i + 1);
  }
  if (whole && bounds_.back() != count_) bounds_.push_back(count_);
  return absl::OkStatus();
}

}  // namespace data
