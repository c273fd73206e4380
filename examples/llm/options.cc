#include "llm/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace llm {
namespace {

// How one flag's value is read; returns what it takes ("an integer of at least 1") when it is not.
using Setter = std::function<std::optional<std::string>(Options&, const std::string&)>;

using Show = std::function<std::string(const Options&)>;

struct Value {
  Setter set;
  Show show = nullptr;  // prints the field, for the default in the help
};

struct Flag {
  std::string name;
  std::string value;  // what it takes, for the help; empty for a switch
  std::string help;
  Value field;
  bool repeatable = false;
};

constexpr int64_t kLargest = int64_t{1} << 40;
constexpr int64_t kLargestHead = 256;  // the limit of Attention

Value Integer(int64_t Options::*field, int64_t least, int64_t most = kLargest) {
  const auto set = [=](Options& o, const std::string& text) -> std::optional<std::string> {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && end == text.data() + text.size() && value >= least &&
        value <= most) {
      o.*field = value;
      return std::nullopt;
    }
    return most == kLargest ? absl::StrCat("an integer of at least ", least)
                            : absl::StrCat("an integer from ", least, " to ", most);
  };
  return {set, [=](const Options& o) { return absl::StrCat(o.*field); }};
}

// A finite number in [least, most), or in (least, most) when `open`.
Value Real(double Options::*field, double least, double most, bool open = false) {
  const auto set = [=](Options& o, const std::string& text) -> std::optional<std::string> {
    double value = 0;
    if (absl::SimpleAtod(text, &value) && std::isfinite(value) && value < most &&
        (open ? value > least : value >= least)) {
      o.*field = value;
      return std::nullopt;
    }
    const std::string low = absl::StrCat(open ? "a number above " : "a number of at least ", least);
    return most >= 1e30 ? low : absl::StrCat(low, " and below ", most);
  };
  return {set, [=](const Options& o) { return absl::StrCat(o.*field); }};
}

// One of two words.
Value Either(bool Options::*field, std::string yes, std::string no) {
  const auto set = [=](Options& o, const std::string& text) -> std::optional<std::string> {
    if (text != yes && text != no) return absl::StrCat(yes, " or ", no);
    o.*field = text == yes;
    return std::nullopt;
  };
  return {set, [=](const Options& o) { return o.*field ? yes : no; }};
}

Value Switch(bool Options::*field, bool value) {
  return {[=](Options& o, const std::string&) -> std::optional<std::string> {
    o.*field = value;
    return std::nullopt;
  }};
}

std::optional<std::string> SetSeed(Options& o, const std::string& text) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), o.seed);
  if (error == std::errc() && end == text.data() + text.size()) return std::nullopt;
  return "an integer from 0 to 2^64 - 1";
}

std::optional<std::string> SetTimeout(Options& o, const std::string& text) {
  double seconds = 0;
  absl::Duration duration;
  if (absl::SimpleAtod(text, &seconds) && std::isfinite(seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    duration = absl::ZeroDuration();
  }
  if (duration <= absl::ZeroDuration() || duration > absl::Hours(1000)) {
    return "a duration such as 90, 90s or 5m";
  }
  o.timeout = duration;
  return std::nullopt;
}

std::optional<std::string> AddData(Options& o, const std::string& text) {
  if (text.empty()) return "the names of files";
  o.data.push_back(text);
  return std::nullopt;
}

std::optional<std::string> SetOut(Options& o, const std::string& text) {
  if (text.empty()) return "a folder";
  o.out = text;
  return std::nullopt;
}

std::optional<std::string> SetPrompt(Options& o, const std::string& text) {
  if (text.empty()) return "at least one byte";
  o.prompt = text;
  return std::nullopt;
}

const std::vector<Flag>& Flags() {
  using O = Options;
  constexpr double kNoLimit = 1e30;
  static const auto* const flags = new std::vector<Flag>{
      {"data",
       "FILE...",
       "text, token files (NAME.bin) or JSON lines (NAME.jsonl), joined in this order; repeatable",
       {AddData},
       true},
      {"vocab", "N", "tokens of the vocabulary of NAME.bin or NAME.jsonl; 0: bytes",
       Integer(&O::vocabulary, 0, 1 << 24)},
      {"end_token", "N", "token of NAME.bin that ends a document; -1: none",
       Integer(&O::end_token, -1, 1 << 24)},
      {"out", "DIR", "where metrics.jsonl and report.html go; must hold no run yet", {SetOut}},
      {"dim", "N", "width of the model", Integer(&O::dim, 1, 1 << 16)},
      {"layers", "N", "decoder blocks", Integer(&O::layers, 1, 4096)},
      {"heads", "N", "attention heads; divides dim", Integer(&O::heads, 1, 4096)},
      {"kv_heads", "N", "key and value heads; divides heads", Integer(&O::kv_heads, 1, 4096)},
      {"ffn", "N", "inner width of the feed-forward part; 0: 8/3 of dim, a multiple of 32",
       Integer(&O::ffn, 0, 1 << 20)},
      {"tied", "", "the head shares the weights of the embedding (the default)",
       Switch(&O::tied, true)},
      {"untied", "", "the head has weights of its own", Switch(&O::tied, false)},
      {"dropout", "P", "probability of dropping an activation", Real(&O::dropout, 0, 1)},
      {"steps", "N", "training steps", Integer(&O::steps, 1)},
      {"seq", "N", "tokens of a row, which is one sample", Integer(&O::seq, 1, 1 << 24)},
      {"batch", "N", "samples a step, over all ranks and micro-batches", Integer(&O::batch, 1)},
      {"micro_batches", "N", "parts a step is computed in, one after another",
       Integer(&O::micro_batches, 1)},
      {"token_budget", "N",
       "instead of --micro_batches: parts take samples up to N tokens, padding counted; 0: none",
       Integer(&O::token_budget, 0)},
      {"lr", "R", "highest learning rate", Real(&O::lr, 0, kNoLimit, true)},
      {"min_lr", "R", "learning rate of the last step; a tenth of --lr unless given",
       Real(&O::min_lr, 0, kNoLimit)},
      {"warmup", "N", "steps of linear rise to --lr; a cosine leads from there to --min_lr",
       Integer(&O::warmup, 0)},
      {"weight_decay", "R", "of matrices; norms have none", Real(&O::weight_decay, 0, kNoLimit)},
      {"clip", "R", "largest gradient norm; 0: no clipping", Real(&O::clip, 0, kNoLimit)},
      {"z_loss", "R",
       "weight of a second loss that keeps the softmax's denominator near 1; 0: none",
       Real(&O::z_loss, 0, kNoLimit)},
      {"seed",
       "N",
       "decides initial values, the order of samples, dropout and the generated text",
       {SetSeed, [](const O& o) { return absl::StrCat(o.seed); }}},
      {"dtype", "f32|f64", "numbers to train in; f64 is for proofs", Either(&O::f64, "f64", "f32")},
      {"checkpoint", "on|off",
       "recompute activations of a block in backward instead of keeping them",
       Either(&O::checkpoint, "on", "off")},
      {"reshard", "on|off", "free gathered parameters between forward and backward",
       Either(&O::reshard, "on", "off")},
      {"threads", "N", "compute threads of each rank", Integer(&O::threads, 1, 4096)},
      {"eval_every", "N", "steps between validations; 0: only at the end",
       Integer(&O::eval_every, 0)},
      {"eval_windows", "N", "samples of a validation on the way; the last one takes all",
       Integer(&O::eval_windows, 1)},
      {"generate", "N", "bytes of text written at the end", Integer(&O::generate, 0)},
      {"temperature", "R", "of that text; 0: the likeliest byte every time",
       Real(&O::temperature, 0, kNoLimit)},
      {"prompt", "TEXT", "what that text begins with (a line feed)", {SetPrompt}},
      {"log_every", "N", "steps between progress lines", Integer(&O::log_every, 1)},
      {"save_every", "N",
       "steps between saved states in DIR/states; 0: none. With it, SIGTERM saves and ends",
       Integer(&O::save_every, 0)},
      {"keep", "N", "saved states that stay, the newest; 0: all", Integer(&O::keep, 0)},
      {"resume", "", "go on from the newest state in --out, or begin where there is none",
       Switch(&O::resume, true)},
      {"timeout",
       "T",
       "how long to wait for a peer, such as 90s",
       {SetTimeout, [](const O& o) { return absl::FormatDuration(o.timeout); }}},
      {"help", "", "print this text", Switch(&O::help, true)},
  };
  return *flags;
}

const Flag* Find(std::string_view name) {
  for (const Flag& flag : Flags()) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

// Levenshtein's distance: insertions, deletions and replacements that lead from a to b.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string NearestFlag(std::string_view name) {
  return std::min_element(Flags().begin(), Flags().end(),
                          [&](const Flag& a, const Flag& b) {
                            return EditDistance(name, a.name) < EditDistance(name, b.name);
                          })
      ->name;
}

absl::Status Invalid(std::string_view message) {
  return absl::InvalidArgumentError(std::string(message));
}

absl::Status CheckTogether(const Options& o) {
  if (o.data.empty()) return Invalid("--data is missing: name at least one file");
  if (o.out.empty()) return Invalid("--out is missing: name a folder for the results");
  if (o.dim % o.heads != 0) {
    return Invalid(absl::StrCat("--dim ", o.dim, " is not divisible by --heads ", o.heads));
  }
  if (o.head_size() % 2 != 0) {
    return Invalid(absl::StrCat("--dim ", o.dim, " over --heads ", o.heads, " gives heads of size ",
                                o.head_size(), "; rotary positions need an even size"));
  }
  if (o.head_size() > kLargestHead) {
    return Invalid(absl::StrCat("--dim ", o.dim, " over --heads ", o.heads, " gives heads of size ",
                                o.head_size(), "; at most ", kLargestHead, " are supported"));
  }
  if (o.heads % o.kv_heads != 0) {
    return Invalid(
        absl::StrCat("--heads ", o.heads, " is not divisible by --kv_heads ", o.kv_heads));
  }
  if (o.token_budget > 0 && o.token_budget < o.seq) {
    return Invalid(absl::StrCat("--token_budget ", o.token_budget, " is below --seq ", o.seq,
                                ", and a row may have that many tokens"));
  }
  if (o.min_lr > o.lr) {
    return Invalid(absl::StrCat("--min_lr ", o.min_lr, " is above --lr ", o.lr));
  }
  if (o.warmup > o.steps) {
    return Invalid(absl::StrCat("--warmup ", o.warmup, " is longer than --steps ", o.steps));
  }
  return absl::OkStatus();
}

// Splits "--name=value"; the name comes back with underscores.
std::pair<std::string, std::optional<std::string>> SplitArgument(std::string_view argument) {
  argument.remove_prefix(2);
  const size_t equals = argument.find('=');
  std::string name(argument.substr(0, equals));
  std::replace(name.begin(), name.end(), '-', '_');
  if (equals == std::string_view::npos) return {name, std::nullopt};
  return {name, std::string(argument.substr(equals + 1))};
}

absl::Status Set(const Flag& flag, const std::string& value, Options& options) {
  const std::optional<std::string> wanted = flag.field.set(options, value);
  if (!wanted) return absl::OkStatus();
  return Invalid(absl::StrCat("--", flag.name, " takes ", *wanted, ", not '", value, "'"));
}

}  // namespace

absl::StatusOr<Options> ParseOptions(std::span<const char* const> arguments) {
  const std::vector<std::string> words(arguments.begin(), arguments.end());
  const auto is_flag = [](const std::string& word) { return word.rfind("--", 0) == 0; };
  Options options;
  std::set<std::string> seen;
  for (size_t i = 0; i < words.size(); ++i) {
    if (!is_flag(words[i])) {
      return Invalid(absl::StrCat("'", words[i], "' belongs to no flag; files follow --data"));
    }
    const auto [name, inline_value] = SplitArgument(words[i]);
    const Flag* flag = Find(name);
    if (flag == nullptr) {
      return Invalid(absl::StrCat("unknown flag --", name, "; did you mean --", NearestFlag(name),
                                  "? --help lists all flags"));
    }
    if (!seen.insert(name).second && !flag->repeatable) {
      return Invalid(absl::StrCat("--", name, " is given twice"));
    }
    std::vector<std::string> values;
    if (inline_value) values.push_back(*inline_value);
    if (flag->value.empty()) {
      if (inline_value) return Invalid(absl::StrCat("--", name, " takes no value"));
      values.emplace_back();
    }
    while (values.empty() || (flag->repeatable && !inline_value)) {
      if (i + 1 == words.size() || is_flag(words[i + 1])) break;
      values.push_back(words[++i]);
    }
    if (values.empty()) return Invalid(absl::StrCat("--", name, " needs a value: ", flag->value));
    for (const std::string& value : values) {
      if (absl::Status status = Set(*flag, value, options); !status.ok()) return status;
    }
    if (options.help) return options;
  }
  if (seen.count("tied") > 0 && seen.count("untied") > 0) {
    return Invalid("--tied and --untied exclude each other");
  }
  if (seen.count("micro_batches") > 0 && options.token_budget > 0) {
    return Invalid("--micro_batches and --token_budget exclude each other");
  }
  // A schedule shorter than the default warm-up, or lower than the default floor, is no mistake.
  if (seen.count("warmup") == 0) options.warmup = std::min(options.warmup, options.steps / 10);
  if (seen.count("min_lr") == 0) options.min_lr = options.lr / 10;
  if (absl::Status status = CheckTogether(options); !status.ok()) return status;
  return options;
}

std::string HelpText(std::string_view program) {
  std::string text = absl::StrCat(
      "Trains a small language model on bytes of text, its parameters sharded over all ranks.\n\n "
      " ",
      std::string(program), " --data FILE... --out DIR [flags]\n  mpirun -n 2 ",
      std::string(program), " --data FILE... --out DIR [flags]\n\n");
  for (const Flag& flag : Flags()) {
    const std::string left =
        absl::StrCat("--", flag.name, flag.value.empty() ? "" : " ", flag.value);
    const std::string initial = flag.field.show ? absl::StrCat(" [", flag.field.show({}), "]") : "";
    absl::StrAppendFormat(&text, "  %-20s %s%s\n", left, flag.help, initial);
  }
  return text;
}

}  // namespace llm
