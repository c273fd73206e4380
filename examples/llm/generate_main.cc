// Continues a text with a language model: one that this trainer saved, or a Hugging Face folder's.

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "data/bpe_tokenizer.h"
#include "data/byte_tokenizer.h"
#include "llm/escape.h"
#include "llm/generate.h"
#include "llm/generate_options.h"
#include "llm/models/pretrained.h"
#include "llm/program.h"
#include "llm/saved_model.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/comm/launch.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/shard/fully_shard.h"

namespace llm {
namespace {

constexpr char kName[] = "generate";

// Text to tokens of a model and back: by a tokenizer, or by bytes where the model knows only those.
class Words {
 public:
  // Errors: those of BpeTokenizer::Load.
  static absl::StatusOr<Words> Of(const ProgramOptions& o, const SavedModel& saved,
                                  int64_t vocabulary) {
    Words words;
    words.vocabulary_ = vocabulary;
    const std::string& from = o.tokenizer.empty() ? saved.tokenizer : o.tokenizer;
    if (from.empty()) return words;
    absl::StatusOr<data::BpeTokenizer> loaded = data::BpeTokenizer::Load(from);
    if (!loaded.ok()) return loaded.status();
    words.tokenizer_.emplace(*std::move(loaded));
    return words;
  }

  bool has_text() const { return tokenizer_ || vocabulary_ == data::kByteVocabulary; }

  absl::StatusOr<std::vector<int64_t>> Encode(const std::string& text) const {
    if (!has_text()) {
      return absl::InvalidArgumentError(
          "the model has no tokenizer.json: give --tokenizer, or --prompt_tokens");
    }
    if (!tokenizer_) return data::EncodeBytes(text);
    const std::vector<int32_t> ids = tokenizer_->Encode(text);
    for (const int32_t id : ids) {
      if (id < vocabulary_) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("the tokenizer gives token ", id, ", and the model has ", vocabulary_));
    }
    return std::vector<int64_t>(ids.begin(), ids.end());
  }
  std::string Decode(const std::vector<int64_t>& tokens) const {
    if (!has_text()) return absl::StrJoin(tokens, " ");
    if (tokenizer_) return tokenizer_->Decode(std::vector<int32_t>(tokens.begin(), tokens.end()));
    return std::string(tokens.begin(), tokens.end());
  }

 private:
  std::optional<data::BpeTokenizer> tokenizer_;
  int64_t vocabulary_ = 0;
};

// The prompt, which rank 0 has. COLLECTIVE.
absl::StatusOr<std::string> PromptOf(const ProgramOptions& o, sherd::World& world) {
  std::string text = o.prompt;
  if (text.empty() && world.rank() == 0) {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  }
  return sherd::GatherTexts(world.group(), text)[0];
}

absl::StatusOr<std::vector<int64_t>> PromptTokens(const ProgramOptions& o, const Words& words,
                                                  int64_t vocabulary, sherd::World& world) {
  absl::StatusOr<std::vector<int64_t>> tokens;
  if (!o.prompt_tokens.empty()) {
    tokens = ParseTokens(o.prompt_tokens, vocabulary);
  } else {
    const absl::StatusOr<std::string> text = PromptOf(o, world);
    tokens = words.Encode(*text);
  }
  if (tokens.ok() && tokens->empty()) {
    return absl::InvalidArgumentError("the prompt is empty: a model continues at least one token");
  }
  return tokens;
}

// The model with its values, sharded over the ranks. COLLECTIVE.
absl::StatusOr<std::unique_ptr<TextModel>> ModelOf(const SavedModel& saved, sherd::World& world) {
  std::unique_ptr<TextModel> model = MakeModel(saved.config, world.device());
  for (sherd::Module* layer : model->layers()) sherd::FullyShard(*layer, world.mesh());
  sherd::FullyShard(*model, world.mesh());
  if (absl::Status loaded = LoadModel(saved, *model, world.group()); !loaded.ok()) return loaded;
  return model;
}

absl::StatusOr<int> Run(const ProgramOptions& o, sherd::World& world) {
  absl::StatusOr<SavedModel> saved = FindModel(o.model);
  if (saved.ok() &&
      (saved->config.model_type() == "bert" || saved->config.head().kind != Head::kLanguageModel)) {
    saved = absl::InvalidArgumentError(
        absl::StrCat("the model in ", saved->folder, " does not predict the next token"));
  }
  if (absl::Status good = sherd::AgreeOn(world.group(), saved.status()); !good.ok()) return good;
  const auto model = ModelOf(*saved, world);
  if (!model.ok()) return model.status();
  const absl::StatusOr<Words> words = Words::Of(o, *saved, (*model)->vocabulary());
  if (absl::Status good = sherd::AgreeOn(world.group(), words.status()); !good.ok()) return good;
  auto prompt = PromptTokens(o, *words, (*model)->vocabulary(), world);
  if (absl::Status good = sherd::AgreeOn(world.group(), prompt.status()); !good.ok()) return good;
  ContinueOptions options = {.tokens = o.tokens,
                             .sampling = {.temperature = o.temperature,
                                          .top_k = o.top_k,
                                          .top_p = o.top_p,
                                          .seed = o.seed},
                             .group = &world.group()};
  if (!o.no_end) {
    options.end_tokens = o.end_token >= 0 ? std::vector{o.end_token} : saved->end_tokens;
  }
  const std::vector<int64_t> drawn = Continue(**model, *std::move(prompt), options, world.device());
  if (world.rank() == 0) {
    const bool ids = o.print_tokens || !words->has_text();
    const std::string text = ids ? absl::StrJoin(drawn, " ") : ValidUtf8(words->Decode(drawn));
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }
  return 0;
}

int Main(std::span<const char* const> arguments) {
  const absl::StatusOr<sherd::LaunchInfo> launch = sherd::ParseLaunch(sherd::ProcessEnvironment());
  if (!launch.ok()) return Fail(kName, {}, launch.status(), kUsage);
  const absl::StatusOr<ProgramOptions> options = ParseProgramOptions(arguments.subspan(1));
  if (!options.ok()) return Fail(kName, *launch, options.status(), kUsage);
  if (options->help) {
    if (launch->rank == 0) std::fputs(ProgramHelp("sherd_generate_llm").c_str(), stdout);
    return 0;
  }
  return RunInWorld(kName, *launch,
                    {.device = options->cuda ? sherd::DeviceKind::kCuda : sherd::DeviceKind::kCpu,
                     .threads = static_cast<int>(options->threads),
                     .log = sherd::StderrLogSink()},
                    [&](sherd::World& world) { return Run(*options, world); });
}

}  // namespace
}  // namespace llm

int main(int argc, char** argv) {
  return llm::Main(std::span<const char* const>(argv, static_cast<size_t>(argc)));
}
