#include "llm/dataset.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "data/byte_tokenizer.h"
#include "data/json_lines.h"
#include "data/packing.h"
#include "data/sample_list.h"
#include "data/token_file.h"
#include "llm/tokenizer_files.h"
#include "sherd/runtime/io/mapped_file.h"

namespace llm {
namespace {

// Held out of the data: one part in this many.
constexpr int64_t kValidationShare = 20;

enum class Kind { kText, kTokens, kSamples };

Kind KindOf(const std::string& name) {
  if (absl::EndsWith(name, ".bin")) return Kind::kTokens;
  return absl::EndsWith(name, ".jsonl") ? Kind::kSamples : Kind::kText;
}

const char* NameOf(Kind kind) {
  return kind == Kind::kTokens ? "token file" : kind == Kind::kSamples ? "JSON-lines file" : "text";
}

absl::Status CheckKinds(const Options& o) {
  const Kind kind = KindOf(o.data[0]);
  for (const std::string& name : o.data) {
    if (KindOf(name) == kind) continue;
    return absl::InvalidArgumentError(absl::StrCat("--data mixes ", NameOf(kind), " ", o.data[0],
                                                   " with ", NameOf(KindOf(name)), " ", name,
                                                   "; give one kind"));
  }
  if (kind == Kind::kTokens && o.vocabulary == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token file ", o.data[0], " needs --vocab, the number of its tokenizer's tokens"));
  }
  if (kind == Kind::kText && o.vocabulary != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--vocab belongs to token files and JSON lines; the tokens of text ",
                     o.data[0], " are its bytes"));
  }
  if (kind != Kind::kTokens && o.end_token >= 0) {
    return absl::InvalidArgumentError("--end_token belongs to token files (NAME.bin)");
  }
  return absl::OkStatus();
}

int64_t VocabularyOf(const Options& o) {
  return o.vocabulary > 0 ? o.vocabulary : data::kByteVocabulary;
}

template <typename File>
absl::Status Append(absl::StatusOr<File> file,
                    std::vector<std::unique_ptr<const data::Documents>>& files) {
  if (!file.ok()) return file.status();
  files.push_back(std::make_unique<File>(*std::move(file)));
  return absl::OkStatus();
}

// A text as one document of a tokenizer's tokens.
absl::StatusOr<data::DocumentList> ReadWords(const std::string& name,
                                             const data::BpeTokenizer& tokenizer) {
  const absl::StatusOr<sherd::MappedFile> file = sherd::MappedFile::Open("text file", name);
  if (!file.ok()) return file.status();
  const std::vector<int32_t> ids = tokenizer.Encode(file->text());
  data::DocumentList document;
  document.Add(std::vector<int64_t>(ids.begin(), ids.end()));
  return document;
}

// Makes a text tokens of the tokenizer, if there is one; without it a text's tokens are its bytes.
absl::Status Tokenize(const std::string& name, const data::BpeTokenizer* tokenizer,
                      int64_t vocabulary, data::Sample& sample) {
  if (sample.text.empty()) return absl::OkStatus();
  const auto wrong = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat(name, ":", sample.line, ": ", why));
  };
  if (tokenizer == nullptr) {
    if (vocabulary >= data::kByteVocabulary) return absl::OkStatus();
    return wrong(absl::StrCat("the sample is a text, whose ", data::kByteVocabulary,
                              " tokens are bytes, but --vocab is ", vocabulary));
  }
  const std::vector<int32_t> ids = tokenizer->Encode(sample.text);
  if (ids.empty()) return wrong("the text has no token of the tokenizer");
  const int32_t highest = *std::max_element(ids.begin(), ids.end());
  if (highest >= vocabulary) {
    return wrong(absl::StrCat("the text has the tokenizer's token ", highest, ", but --vocab is ",
                              vocabulary));
  }
  sample.tokens.assign(ids.begin(), ids.end());
  sample.labels.assign(ids.begin() + 1, ids.end());
  sample.labels.push_back(data::kIgnored);
  sample.text.clear();
  return absl::OkStatus();
}

int64_t TokensOf(const data::Samples& samples) {
  int64_t tokens = 0;
  for (int64_t i = 0; i < samples.size(); ++i) tokens += samples.length(i);
  return tokens;
}

// Rows of documents, and what they are made of.
struct Packed {
  Packed(const data::Documents& all, int64_t begin, int64_t end, int64_t seq)
      : slice(all, begin, end), packing(slice, seq), samples(packing) {}

  data::DocumentSlice slice;
  data::Packing packing;
  data::PackedSamples samples;
};

}  // namespace

struct Dataset::Parts {
  std::optional<data::BpeTokenizer> tokenizer;
  int64_t vocabulary = 0;
  int64_t train_tokens = 0;
  int64_t validation_tokens = 0;
  const data::Samples* train = nullptr;
  const data::Samples* validation = nullptr;

  // Of documents; each refers to those before it.
  std::vector<std::unique_ptr<const data::Documents>> files;
  std::optional<data::JoinedDocuments> joined;
  std::optional<Packed> packed_train, packed_validation;
  // Of samples.
  std::optional<data::SampleList> train_list, validation_list;
};

Dataset::Dataset(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Dataset::Dataset(Dataset&&) noexcept = default;
Dataset& Dataset::operator=(Dataset&&) noexcept = default;
Dataset::~Dataset() = default;

const data::Samples& Dataset::train() const { return *parts_->train; }
const data::Samples& Dataset::validation() const { return *parts_->validation; }
int64_t Dataset::train_tokens() const { return parts_->train_tokens; }
int64_t Dataset::validation_tokens() const { return parts_->validation_tokens; }
int64_t Dataset::vocabulary() const { return parts_->vocabulary; }
const data::BpeTokenizer* Dataset::tokenizer() const {
  return parts_->tokenizer ? &*parts_->tokenizer : nullptr;
}

absl::StatusOr<Dataset> Dataset::Open(const Options& o) {
  if (absl::Status good = CheckKinds(o); !good.ok()) return good;
  std::optional<data::BpeTokenizer> tokenizer;
  if (KindOf(o.data[0]) != Kind::kTokens && !o.init.empty() && HasTokenizer(o.init)) {
    absl::StatusOr<data::BpeTokenizer> loaded = data::BpeTokenizer::Load(o.init);
    if (!loaded.ok()) return loaded.status();
    tokenizer.emplace(*std::move(loaded));
  }
  const data::BpeTokenizer* const words = tokenizer ? &*tokenizer : nullptr;
  absl::StatusOr<Dataset> data =
      KindOf(o.data[0]) == Kind::kSamples ? FromSamples(o, words) : FromFiles(o, words);
  if (data.ok()) data->parts_->tokenizer = std::move(tokenizer);
  return data;
}

absl::StatusOr<Dataset> Dataset::FromFiles(const Options& o, const data::BpeTokenizer* tokenizer) {
  const bool text = KindOf(o.data[0]) == Kind::kText;
  const std::optional<int64_t> end = o.end_token >= 0 ? std::optional(o.end_token) : std::nullopt;
  std::vector<std::unique_ptr<const data::Documents>> files;
  for (const std::string& name : o.data) {
    const absl::Status opened =
        tokenizer != nullptr ? Append(ReadWords(name, *tokenizer), files)
        : text               ? Append(data::TextFile::Open(name), files)
               : Append(data::TokenFile::Open(name, o.vocabulary, data::TokenFormat::kDetect, end),
                        files);
    if (!opened.ok()) return opened;
  }
  return FromDocuments(std::move(files),
                       tokenizer != nullptr ? tokenizer->vocabulary() : VocabularyOf(o), o.seq);
}

absl::StatusOr<Dataset> Dataset::FromText(const std::string& text, int64_t seq) {
  auto document = std::make_unique<data::DocumentList>();
  document->Add(data::EncodeBytes(text));
  std::vector<std::unique_ptr<const data::Documents>> files;
  files.push_back(std::move(document));
  return FromDocuments(std::move(files), data::kByteVocabulary, seq);
}

absl::StatusOr<Dataset> Dataset::FromDocuments(
    std::vector<std::unique_ptr<const data::Documents>> files, int64_t vocabulary, int64_t seq) {
  auto parts = std::make_unique<Parts>();
  parts->vocabulary = vocabulary;
  parts->files = std::move(files);
  std::vector<const data::Documents*> pointers;
  for (const auto& file : parts->files) pointers.push_back(file.get());
  const data::JoinedDocuments& all = parts->joined.emplace(std::move(pointers));
  const int64_t tokens = all.tokens();
  const int64_t window = seq + 1;
  if (tokens < 2 * window) {
    const char* const what = vocabulary == data::kByteVocabulary ? "bytes" : "tokens";
    return absl::InvalidArgumentError(
        absl::StrCat("the data has ", tokens, " ", what, ", but --seq ", seq, " needs at least ",
                     2 * window, ": one window of ", window, " to learn and one to measure"));
  }
  const int64_t cut = tokens - std::max(tokens / kValidationShare, window);
  parts->packed_train.emplace(all, 0, cut, seq);
  parts->packed_validation.emplace(all, cut, tokens, seq);
  parts->train = &parts->packed_train->samples;
  parts->validation = &parts->packed_validation->samples;
  parts->train_tokens = cut;
  parts->validation_tokens = tokens - cut;
  return Dataset(std::move(parts));
}

absl::StatusOr<Dataset> Dataset::FromSamples(const Options& o,
                                             const data::BpeTokenizer* tokenizer) {
  const int64_t vocabulary =
      tokenizer != nullptr && o.vocabulary == 0 ? tokenizer->vocabulary() : VocabularyOf(o);
  std::vector<data::Sample> all;
  for (const std::string& name : o.data) {
    absl::StatusOr<std::vector<data::Sample>> samples = data::ReadSamples(name, vocabulary);
    if (!samples.ok()) return samples.status();
    for (data::Sample& sample : *samples) {
      const absl::Status good = Tokenize(name, tokenizer, vocabulary, sample);
      if (!good.ok()) return good;
      const size_t length = std::max(sample.text.size(), sample.tokens.size());
      if (length > static_cast<size_t>(o.seq)) {
        return absl::InvalidArgumentError(absl::StrCat(name, ":", sample.line, ": the sample has ",
                                                       length, " tokens, more than --seq ", o.seq));
      }
      all.push_back(std::move(sample));
    }
  }
  if (all.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("the data has one sample (", o.data[0],
                     "), but one to learn and one to measure are needed"));
  }
  const size_t held_out = std::max<size_t>(all.size() / kValidationShare, 1);
  auto parts = std::make_unique<Parts>();
  parts->vocabulary = vocabulary;
  const auto cut = all.end() - static_cast<std::ptrdiff_t>(held_out);
  parts->validation = &parts->validation_list.emplace(std::vector<data::Sample>(cut, all.end()));
  all.erase(cut, all.end());
  parts->train = &parts->train_list.emplace(all);
  parts->train_tokens = TokensOf(*parts->train);
  parts->validation_tokens = TokensOf(*parts->validation);
  return Dataset(std::move(parts));
}

std::vector<int64_t> SpreadRows(const data::Samples& samples, int64_t most) {
  const int64_t count = std::min(samples.size(), most);
  std::vector<int64_t> rows;
  for (int64_t i = 0; i < count; ++i) rows.push_back(i * samples.size() / count);
  return rows;
}

}  // namespace llm
