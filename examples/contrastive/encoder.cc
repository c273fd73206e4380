#include "contrastive/encoder.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "contrastive/pooling_file.h"
#include "contrastive/vocabulary.h"
#include "llm/escape.h"
#include "llm/tokenizer_files.h"
#include "sherd/runtime/base/new_file.h"
#include "sherd/runtime/io/json.h"

namespace contrastive {
namespace {

using llm::Pooling;
using sherd::Json;
using sherd::JsonArray;
using sherd::JsonObject;
using sherd::Tensor;

constexpr int64_t kDefaultTokens = 64;  // of a new encoder

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

// --pooling, or what the folder says; of a chosen token its first place.
Pooling PoolingOf(const Options& o, const std::optional<Pooling>& of_folder) {
  if (o.pooling.empty()) return of_folder.value_or(Pooling::kMean);
  if (o.pooling == "mean") return Pooling::kMean;
  return o.pooling == "last" ? Pooling::kLast : Pooling::kFirst;
}

sherd::DType DTypeOf(const Options& o) { return o.f64 ? sherd::DType::kF64 : sherd::DType::kF32; }

bool NamesToken(const Options& o) {
  return !o.pooling.empty() && o.pooling != "mean" && o.pooling != "first" && o.pooling != "last";
}

std::string NewConfig(const Options& o, int64_t vocabulary, int64_t positions) {
  const JsonObject fields = {{"architectures", Json{JsonArray{Json{"BertModel"}}}},
                             {"model_type", Json{"bert"}},
                             {"vocab_size", Json{vocabulary}},
                             {"hidden_size", Json{o.dim}},
                             {"num_hidden_layers", Json{o.layers}},
                             {"num_attention_heads", Json{o.heads}},
                             {"intermediate_size", Json{o.ffn}},
                             {"max_position_embeddings", Json{positions}},
                             {"type_vocab_size", Json{int64_t{2}}},
                             {"hidden_act", Json{"gelu"}},
                             {"layer_norm_eps", Json{1e-12}},
                             {"initializer_range", Json{0.02}},
                             {"pad_token_id", Json{int64_t{0}}}};
  return sherd::WriteJson(Json{fields});
}

absl::StatusOr<Encoder> NewEncoder(const Options& o, const PairSet& pairs) {
  auto tokenizer = MakeVocabulary(pairs.texts, o.vocabulary);
  if (!tokenizer.ok()) return tokenizer.status();
  const int64_t positions = o.seq > 0 ? o.seq : kDefaultTokens;
  const llm::HeadOptions head = {
      .kind = llm::Head::kEmbedding, .pooling = PoolingOf(o, std::nullopt), .normalize = true};
  auto config =
      llm::ParseModelConfig("the new encoder", NewConfig(o, tokenizer->vocabulary(), positions),
                            {.head = head, .dtype = DTypeOf(o)});
  if (!config.ok()) return config.status();
  return Encoder{*std::move(config), *std::move(tokenizer), positions};
}

absl::StatusOr<Encoder> ReadEncoder(const Options& o) {
  const absl::StatusOr<FolderPooling> folder = ReadFolderPooling(o.init);
  if (!folder.ok()) return folder.status();
  const llm::HeadOptions head = {
      .kind = llm::Head::kEmbedding, .pooling = PoolingOf(o, folder->pooling), .normalize = true};
  auto config = llm::ReadModelConfig(o.init, {.head = head, .dtype = DTypeOf(o)});
  if (!config.ok()) return config.status();
  const auto* const bert = std::get_if<llm::BertConfig>(&config->sizes);
  if (bert == nullptr) {
    return Invalid(absl::StrCat("the model of --init ", o.init, " is of type ",
                                config->model_type(), ", and encoders are of type bert"));
  }
  auto tokenizer = data::WordPieceTokenizer::Load(o.init);
  if (!tokenizer.ok()) return tokenizer.status();
  if (tokenizer->vocabulary() > bert->vocabulary) {
    return Invalid(absl::StrCat("the tokenizer of --init ", o.init, " has ",
                                tokenizer->vocabulary(), " tokens, and its model ",
                                bert->vocabulary));
  }
  if (o.seq > bert->positions) {
    return Invalid(absl::StrCat("the model of --init ", o.init, " has ", bert->positions,
                                " positions, fewer than --seq ", o.seq));
  }
  const int64_t most = folder->max_tokens.value_or(bert->positions);
  return Encoder{*std::move(config), *std::move(tokenizer),
                 o.seq > 0 ? o.seq : std::min(most, bert->positions)};
}

// The beginning of a text, for errors.
std::string Shown(const std::string& text) {
  constexpr size_t kMost = 80;  // bytes
  const bool cut = text.size() > kMost;
  return absl::StrCat(llm::JsonString(text.substr(0, kMost)), cut ? "..." : "");
}

absl::Status WriteText(const std::string& folder, const char* name, const std::string& text) {
  const std::string path = (std::filesystem::path(folder) / name).string();
  absl::StatusOr<sherd::NewFile> file = sherd::NewFile::Create(path);
  if (!file.ok()) return file.status();
  if (absl::Status written = file->Append(text); !written.ok()) return written;
  return file->Publish();
}

absl::Status WriteNewTokenizer(const Encoder& encoder, const std::string& folder) {
  std::string vocabulary;
  for (int32_t id = 0; id < encoder.tokenizer.vocabulary(); ++id) {
    absl::StrAppend(&vocabulary, std::string(encoder.tokenizer.Token(id)), "\n");
  }
  if (absl::Status s = WriteText(folder, "vocab.txt", vocabulary); !s.ok()) return s;
  const JsonObject config = {{"tokenizer_class", Json{"BertTokenizer"}},
                             {"do_lower_case", Json{true}},
                             {"model_max_length", Json{encoder.max_tokens}}};
  return WriteText(folder, "tokenizer_config.json", sherd::WriteJson(Json{config}) + "\n");
}

}  // namespace

const llm::HeadOptions& Encoder::head() const {
  return std::get<llm::BertConfig>(config.sizes).head;
}

absl::StatusOr<Encoder> MakeEncoder(const Options& o, const PairSet& pairs) {
  absl::StatusOr<Encoder> encoder = o.init.empty() ? NewEncoder(o, pairs) : ReadEncoder(o);
  if (!encoder.ok()) return encoder;
  if (encoder->max_tokens <= encoder->tokenizer.around()) {
    return Invalid(absl::StrCat("a text has at most ", encoder->max_tokens, " tokens, and ",
                                encoder->tokenizer.around(), " stand around it: raise --seq"));
  }
  auto& bert = std::get<llm::BertConfig>(encoder->config.sizes);
  bert.dropout = bert.attention_dropout = o.dropout;
  for (const char* field : {"hidden_dropout_prob", "attention_probs_dropout_prob"}) {
    encoder->config.fields[field] = Json{o.dropout};
  }
  if (!NamesToken(o)) return encoder;
  const std::optional<int32_t> token = encoder->tokenizer.IdOf(o.pooling);
  if (!token) {
    return Invalid(absl::StrCat(
        "--pooling takes mean, first, last or a token of the vocabulary, not '", o.pooling, "'"));
  }
  encoder->chosen_token = *token;
  return encoder;
}

absl::StatusOr<std::vector<std::vector<int64_t>>> Tokenize(const Encoder& encoder,
                                                           const std::string& file,
                                                           std::span<const std::string> texts) {
  std::vector<std::vector<int64_t>> tokens;
  tokens.reserve(texts.size());
  for (const std::string& text : texts) {
    const std::vector<int32_t> ids = encoder.tokenizer.Encode(text, encoder.max_tokens);
    tokens.emplace_back(ids.begin(), ids.end());
    const auto& row = tokens.back();
    if (row.empty()) {
      return Invalid(absl::StrCat(file, ": the text ", Shown(text), " has no tokens"));
    }
    if (encoder.chosen_token < 0 || std::ranges::count(row, encoder.chosen_token) > 0) continue;
    return Invalid(absl::StrCat(
        file, ": the text ", Shown(text), " has no ",
        std::string(encoder.tokenizer.Token(static_cast<int32_t>(encoder.chosen_token))),
        " among its first ", encoder.max_tokens, " tokens to be pooled"));
  }
  return tokens;
}

llm::TextInput InputOf(const Encoder& encoder, std::span<const std::vector<int64_t>> texts,
                       std::span<const int64_t> which, const sherd::Device& device) {
  size_t longest = 0;
  for (const int64_t i : which) longest = std::max(longest, texts[static_cast<size_t>(i)].size());
  std::vector<int64_t> tokens(which.size() * longest, encoder.tokenizer.pad());
  std::vector<int64_t> mask(tokens.size(), 0), chosen(tokens.size(), 0);
  for (size_t row = 0; row < which.size(); ++row) {
    const std::vector<int64_t>& text = texts[static_cast<size_t>(which[row])];
    const auto at = static_cast<std::ptrdiff_t>(row * longest);
    std::ranges::copy(text, tokens.begin() + at);
    std::fill_n(mask.begin() + at, text.size(), 1);
    for (size_t t = 0; t < text.size(); ++t) {
      chosen[row * longest + t] = text[t] == encoder.chosen_token ? 1 : 0;
    }
  }
  const sherd::Shape shape = {static_cast<int64_t>(which.size()), static_cast<int64_t>(longest)};
  const auto made = [&](const std::vector<int64_t>& values) {
    return Tensor::FromHost<int64_t>(device, values, shape);
  };
  return {.tokens = made(tokens),
          .mask = made(mask),
          .pooled = encoder.chosen_token >= 0 ? made(chosen) : Tensor()};
}

absl::Status WriteEncoderFiles(const Options& o, const Encoder& encoder,
                               const std::string& folder) {
  absl::Status written =
      o.init.empty() ? WriteNewTokenizer(encoder, folder) : llm::CopyTokenizer(o.init, folder);
  if (!written.ok()) return written;
  const int64_t width = std::get<llm::BertConfig>(encoder.config.sizes).dim;
  for (const auto& [name, text] : FilesOfPooling(
           {.pooling = encoder.head().pooling, .max_tokens = encoder.max_tokens}, width)) {
    const std::filesystem::path path = std::filesystem::path(folder) / name;
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    written = WriteText(folder, name.c_str(), text);
    if (!written.ok()) return written;
  }
  return absl::OkStatus();
}

}  // namespace contrastive
