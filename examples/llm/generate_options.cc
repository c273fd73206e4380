#include "llm/generate_options.h"

#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "llm/flags.h"

namespace llm {
namespace {

const std::vector<Flag<ProgramOptions>>& Flags() {
  using O = ProgramOptions;
  static const auto* const flags = new std::vector<Flag<O>>{
      {"model", "DIR", "a Hugging Face folder, a saved state, a folder of states, or a run's --out",
       TextFlag(&O::model, "a folder")},
      {"tokenizer", "DIR", "where tokenizer.json is; the model's own unless given",
       TextFlag(&O::tokenizer, "a folder")},
      {"prompt", "TEXT", "what the text begins with; stdin unless given",
       TextFlag(&O::prompt, "at least one byte")},
      {"prompt_tokens", "N,...", "the same as ids of tokens",
       TextFlag(&O::prompt_tokens, "ids, such as 1,2,3")},
      {"print_tokens", "", "print ids instead of text", SwitchFlag(&O::print_tokens, true)},
      {"tokens", "N", "how many are drawn at most", IntegerFlag(&O::tokens, 0)},
      {"temperature", "R", "what logits are divided by; 0: the likeliest token every time",
       RealFlag(&O::temperature, 0, 1e30)},
      {"greedy", "", "the same as --temperature 0", SwitchFlag(&O::greedy, true)},
      {"top_k", "N", "draw among the N likeliest tokens; 0: all", IntegerFlag(&O::top_k, 0)},
      {"top_p", "R", "draw among the fewest tokens of this probability together",
       RealFlag(&O::top_p, 0, 1.0000001, true)},
      {"seed", "N", "decides what is drawn", SeedFlag(&O::seed)},
      {"end_token", "N", "the token that ends the text; -1: what the model says",
       IntegerFlag(&O::end_token, -1, 1 << 24)},
      {"no_end", "", "no token ends the text", SwitchFlag(&O::no_end, true)},
      {"device", "cpu|cuda",
       "where the ranks compute: each on the device of its local rank's number",
       EitherFlag(&O::cuda, "cuda", "cpu")},
      {"threads", "N", "compute threads of each rank", IntegerFlag(&O::threads, 1, 4096)},
      {"help", "", "print this text", SwitchFlag(&O::help, true)},
  };
  return *flags;
}

}  // namespace

absl::StatusOr<ProgramOptions> ParseProgramOptions(std::span<const char* const> arguments) {
  ProgramOptions o;
  std::set<std::string> seen;
  if (absl::Status parsed = ParseFlags(Flags(), arguments, o, seen); !parsed.ok()) return parsed;
  if (o.help) return o;
  if (o.model.empty()) return absl::InvalidArgumentError("--model is missing: name a folder");
  for (const auto& [one, other] :
       {std::pair("prompt", "prompt_tokens"), std::pair("greedy", "temperature"),
        std::pair("no_end", "end_token")}) {
    if (!seen.contains(one) || !seen.contains(other)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", one, " and --", other, " exclude each other"));
  }
  if (o.greedy) o.temperature = 0.0;
  return o;
}

std::string ProgramHelp(std::string_view program) {
  return absl::StrCat("Continues a text with a language model.\n\n  ", std::string(program),
                      " --model DIR --prompt TEXT [flags]\n  mpirun -n 2 ", std::string(program),
                      " --model DIR ...      the model sharded over ranks\n\n") +
         FlagLines(Flags());
}

absl::StatusOr<std::vector<int64_t>> ParseTokens(const std::string& text, int64_t vocabulary) {
  std::vector<int64_t> tokens;
  for (const auto& word : absl::StrSplit(text, absl::ByAnyChar(", \t\n"), absl::SkipEmpty())) {
    int64_t token = 0;
    if (absl::SimpleAtoi(word, &token) && token >= 0 && token < vocabulary) {
      tokens.push_back(token);
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(word), "' is no token of the model, which has ", vocabulary));
  }
  return tokens;
}

}  // namespace llm
