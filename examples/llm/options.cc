#include "llm/options.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "llm/flags.h"

namespace llm {
namespace {

constexpr int64_t kLargestHead = 256;  // the limit of Attention

std::optional<std::string> AddData(Options& o, const std::string& text) {
  if (text.empty()) return "the names of files";
  o.data.push_back(text);
  return std::nullopt;
}

const std::vector<Flag<Options>>& Flags() {
  using O = Options;
  constexpr double kNoLimit = 1e30;
  static const auto* const flags = new std::vector<Flag<Options>>{
      {"data",
       "FILE...",
       "text, token files (NAME.bin) or JSON lines (NAME.jsonl), joined in this order; repeatable",
       {AddData},
       true},
      {"vocab", "N", "tokens of the vocabulary of NAME.bin or NAME.jsonl; 0: bytes",
       IntegerFlag(&O::vocabulary, 0, 1 << 24)},
      {"end_token", "N", "token of NAME.bin that ends a document; -1: none",
       IntegerFlag(&O::end_token, -1, 1 << 24)},
      {"out", "DIR", "where metrics.jsonl and report.html go; must hold no run yet",
       TextFlag(&O::out, "a folder")},
      {"init", "DIR", "a Hugging Face folder whose model is trained on, instead of a new one",
       TextFlag(&O::init, "a folder")},
      {"dim", "N", "width of the model", IntegerFlag(&O::dim, 1, 1 << 16)},
      {"layers", "N", "decoder blocks", IntegerFlag(&O::layers, 1, 4096)},
      {"heads", "N", "attention heads; divides dim", IntegerFlag(&O::heads, 1, 4096)},
      {"kv_heads", "N", "key and value heads; divides heads", IntegerFlag(&O::kv_heads, 1, 4096)},
      {"ffn", "N", "inner width of the feed-forward part; 0: 8/3 of dim, a multiple of 32",
       IntegerFlag(&O::ffn, 0, 1 << 20)},
      {"tied", "", "the head shares the weights of the embedding (the default)",
       SwitchFlag(&O::tied, true)},
      {"untied", "", "the head has weights of its own", SwitchFlag(&O::tied, false)},
      {"dropout", "P", "probability of dropping an activation", RealFlag(&O::dropout, 0, 1)},
      {"steps", "N", "training steps", IntegerFlag(&O::steps, 1)},
      {"seq", "N", "tokens of a row, which is one sample", IntegerFlag(&O::seq, 1, 1 << 24)},
      {"batch", "N", "samples a step, over all ranks and micro-batches", IntegerFlag(&O::batch, 1)},
      {"micro_batches", "N", "parts a step is computed in, one after another",
       IntegerFlag(&O::micro_batches, 1)},
      {"token_budget", "N",
       "instead of --micro_batches: parts take samples up to N tokens, padding counted; 0: none",
       IntegerFlag(&O::token_budget, 0)},
      {"lr", "R", "highest learning rate", RealFlag(&O::lr, 0, kNoLimit, true)},
      {"min_lr", "R", "learning rate of the last step; a tenth of --lr unless given",
       RealFlag(&O::min_lr, 0, kNoLimit)},
      {"warmup", "N", "steps of linear rise to --lr; a cosine leads from there to --min_lr",
       IntegerFlag(&O::warmup, 0)},
      {"weight_decay", "R", "of matrices; norms have none",
       RealFlag(&O::weight_decay, 0, kNoLimit)},
      {"clip", "R", "largest gradient norm; 0: no clipping", RealFlag(&O::clip, 0, kNoLimit)},
      {"z_loss", "R",
       "weight of a second loss that keeps the softmax's denominator near 1; 0: none",
       RealFlag(&O::z_loss, 0, kNoLimit)},
      {"seed", "N", "decides initial values, the order of samples, dropout and the generated text",
       SeedFlag(&O::seed)},
      {"dtype", "f32|f64", "numbers to train in; f64 is for proofs",
       EitherFlag(&O::f64, "f64", "f32")},
      {"checkpoint", "on|off",
       "recompute activations of a block in backward instead of keeping them",
       EitherFlag(&O::checkpoint, "on", "off")},
      {"reshard", "on|off", "free gathered parameters between forward and backward",
       EitherFlag(&O::reshard, "on", "off")},
      {"device", "cpu|cuda",
       "where the ranks compute: each on the device of its local rank's number",
       EitherFlag(&O::cuda, "cuda", "cpu")},
      {"threads", "N", "compute threads of each rank", IntegerFlag(&O::threads, 1, 4096)},
      {"eval_every", "N", "steps between validations; 0: only at the end",
       IntegerFlag(&O::eval_every, 0)},
      {"eval_windows", "N", "samples of a validation on the way; the last one takes all",
       IntegerFlag(&O::eval_windows, 1)},
      {"generate", "N", "bytes of text written at the end", IntegerFlag(&O::generate, 0)},
      {"temperature", "R", "of that text; 0: the likeliest byte every time",
       RealFlag(&O::temperature, 0, kNoLimit)},
      {"prompt", "TEXT", "what that text begins with (a line feed)",
       TextFlag(&O::prompt, "at least one byte")},
      {"log_every", "N", "steps between progress lines", IntegerFlag(&O::log_every, 1)},
      {"save_every", "N",
       "steps between saved states in DIR/states; 0: none. With it, SIGTERM saves and ends",
       IntegerFlag(&O::save_every, 0)},
      {"keep", "N", "saved states that stay, the newest; 0: all", IntegerFlag(&O::keep, 0)},
      {"export", "DIR", "where the trained model is written as a Hugging Face folder",
       TextFlag(&O::export_to, "a folder")},
      {"resume", "", "go on from the newest state in --out, or begin where there is none",
       SwitchFlag(&O::resume, true)},
      {"timeout", "T", "how long to wait for a peer, such as 90s", DurationFlag(&O::timeout)},
      {"help", "", "print this text", SwitchFlag(&O::help, true)},
  };
  return *flags;
}

absl::Status Invalid(std::string_view message) {
  return absl::InvalidArgumentError(std::string(message));
}

// A folder decides what its model is like.
absl::Status CheckInit(const Options& o, const std::set<std::string>& seen) {
  if (o.init.empty()) return absl::OkStatus();
  for (const char* name : {"dim", "layers", "heads", "kv_heads", "ffn", "tied", "untied"}) {
    if (!seen.contains(name)) continue;
    return Invalid(absl::StrCat("--", name, " and --init exclude each other: the model in ", o.init,
                                " is as it is"));
  }
  return absl::OkStatus();
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

}  // namespace

absl::StatusOr<Options> ParseOptions(std::span<const char* const> arguments) {
  Options options;
  std::set<std::string> seen;
  if (absl::Status parsed = ParseFlags(Flags(), arguments, options, seen); !parsed.ok()) {
    return parsed;
  }
  if (options.help) return options;
  if (absl::Status good = CheckInit(options, seen); !good.ok()) return good;
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
  return text + FlagLines(Flags());
}

}  // namespace llm
