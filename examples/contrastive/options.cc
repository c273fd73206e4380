#include "contrastive/options.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "llm/flags.h"

namespace contrastive {
namespace {

using llm::DurationFlag;
using llm::EitherFlag;
using llm::IntegerFlag;
using llm::RealFlag;
using llm::SeedFlag;
using llm::SwitchFlag;
using llm::TextFlag;

using O = Options;

// What is trained, and on what.
std::vector<llm::Flag<O>> DataAndModelFlags() {
  return {
      {"pairs", "FILE", "JSON lines of {\"query\", \"document\"}, perhaps with \"negatives\": []",
       TextFlag(&O::pairs, "a file")},
      {"held_out", "FILE", "such pairs that are measured on", TextFlag(&O::held_out, "a file")},
      {"out", "DIR", "where metrics.jsonl and report.html go; must hold no run yet",
       TextFlag(&O::out, "a folder")},
      {"init", "DIR", "a sentence-transformers folder whose encoder is trained on",
       TextFlag(&O::init, "a folder")},
      {"vocab", "N", "tokens of a new encoder's vocabulary, made of the pairs",
       IntegerFlag(&O::vocabulary, 64, 1 << 20)},
      {"dim", "N", "width of a new encoder", IntegerFlag(&O::dim, 1, 1 << 16)},
      {"layers", "N", "its layers", IntegerFlag(&O::layers, 1, 4096)},
      {"heads", "N", "its attention heads; divides dim", IntegerFlag(&O::heads, 1, 4096)},
      {"ffn", "N", "inner width of its feed-forward part", IntegerFlag(&O::ffn, 1, 1 << 20)},
      {"dropout", "P", "probability of dropping an activation", RealFlag(&O::dropout, 0, 1)},
      {"seq", "N", "tokens of a text, what is longer is cut; 0: as --init says, or 64",
       IntegerFlag(&O::seq, 0, 1 << 20)},
      {"pooling", "P",
       "mean, first, last, or a token that stands in every text; as --init says, or mean",
       TextFlag(&O::pooling, "mean, first, last or a token")},
  };
}

std::vector<llm::Flag<O>> TrainingFlags() {
  return {
      {"steps", "N", "training steps", IntegerFlag(&O::steps, 1)},
      {"batch", "N", "pairs a step, over all ranks; each is told from all others",
       IntegerFlag(&O::batch, 2)},
      {"calls", "N", "calls of the encoder on each rank in a step, in order of the texts' length",
       IntegerFlag(&O::calls, 1, 1 << 20)},
      {"cached", "on|off",
       "keep one call's activations at a time: a forward more, memory of a call",
       EitherFlag(&O::cached, "on", "off")},
      {"temperature", "R", "cosines are divided by it", RealFlag(&O::temperature, 0, 1e6, true)},
      {"symmetric", "on|off", "rank queries for each document too",
       EitherFlag(&O::symmetric, "on", "off")},
      {"lr", "R", "highest learning rate", RealFlag(&O::lr, 0, 1e3, true)},
      {"min_lr", "R", "learning rate of the last step; a tenth of --lr unless given",
       RealFlag(&O::min_lr, 0, 1e3)},
      {"warmup", "N", "steps of linear rise to --lr; a cosine leads from there to --min_lr",
       IntegerFlag(&O::warmup, 0)},
      {"weight_decay", "R", "of matrices; norms and biases have none",
       RealFlag(&O::weight_decay, 0, 1e3)},
      {"clip", "R", "largest gradient norm; 0: no clipping", RealFlag(&O::clip, 0, 1e30)},
      {"seed", "N", "decides initial values, the order of pairs and dropout", SeedFlag(&O::seed)},
  };
}

std::vector<llm::Flag<O>> RunFlags() {
  return {
      {"dtype", "f32|f64", "numbers to train in; f64 is for proofs",
       EitherFlag(&O::f64, "f64", "f32")},
      {"checkpoint", "on|off", "recompute activations of a layer in backward",
       EitherFlag(&O::checkpoint, "on", "off")},
      {"reshard", "on|off", "free gathered parameters between forward and backward",
       EitherFlag(&O::reshard, "on", "off")},
      {"device", "cpu|cuda", "where the ranks compute", EitherFlag(&O::cuda, "cuda", "cpu")},
      {"threads", "N", "compute threads of each rank", IntegerFlag(&O::threads, 1, 4096)},
      {"eval_every", "N", "steps between measures on held-out pairs; 0: before and after alone",
       IntegerFlag(&O::eval_every, 0)},
      {"log_every", "N", "steps between progress lines", IntegerFlag(&O::log_every, 1)},
      {"save_every", "N",
       "steps between saved states in DIR/states; 0: none. With it, SIGTERM saves and ends",
       IntegerFlag(&O::save_every, 0)},
      {"keep", "N", "saved states that stay, the newest; 0: all", IntegerFlag(&O::keep, 0)},
      {"export", "DIR", "where the encoder is written as a sentence-transformers folder",
       TextFlag(&O::export_to, "a folder")},
      {"resume", "", "go on from the newest state in --out, or begin where there is none",
       SwitchFlag(&O::resume, true)},
      {"timeout", "T", "how long to wait for a peer, such as 90s", DurationFlag(&O::timeout)},
      {"help", "", "print this text", SwitchFlag(&O::help, true)},
  };
}

std::vector<llm::Flag<O>> Flags() {
  std::vector<llm::Flag<O>> flags = DataAndModelFlags();
  for (auto more : {TrainingFlags(), RunFlags()}) {
    flags.insert(flags.end(), more.begin(), more.end());
  }
  return flags;
}

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

absl::Status CheckTogether(const Options& o, const std::set<std::string>& seen) {
  for (const auto& [value, flag] :
       {std::pair(&o.pairs, "--pairs"), std::pair(&o.held_out, "--held_out"),
        std::pair(&o.out, "--out")}) {
    if (value->empty()) return Invalid(absl::StrCat(flag, " is missing; --help lists all flags"));
  }
  for (const char* name : {"vocab", "dim", "layers", "heads", "ffn"}) {
    if (o.init.empty() || !seen.contains(name)) continue;
    return Invalid(absl::StrCat("--", name, " and --init exclude each other: the encoder in ",
                                o.init, " is as it is"));
  }
  if (o.dim % o.heads != 0) {
    return Invalid(absl::StrCat("--dim ", o.dim, " is not divisible by --heads ", o.heads));
  }
  if (o.min_lr > o.lr) return Invalid(absl::StrCat("--min_lr ", o.min_lr, " is above --lr ", o.lr));
  if (o.warmup > o.steps) {
    return Invalid(absl::StrCat("--warmup ", o.warmup, " is longer than --steps ", o.steps));
  }
  const bool token =
      !o.pooling.empty() && o.pooling != "mean" && o.pooling != "first" && o.pooling != "last";
  if (token && !o.export_to.empty()) {
    return Invalid(absl::StrCat("--pooling ", o.pooling, " and --export exclude each other: ",
                                "sentence-transformers has no pooling of a chosen token"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Options> ParseOptions(std::span<const char* const> arguments) {
  Options options;
  std::set<std::string> seen;
  if (absl::Status parsed = llm::ParseFlags(Flags(), arguments, options, seen); !parsed.ok()) {
    return parsed;
  }
  if (options.help) return options;
  // A schedule shorter than the default warm-up, or lower than the default floor, is no mistake.
  if (!seen.contains("warmup")) options.warmup = std::min(options.warmup, options.steps / 10);
  if (!seen.contains("min_lr")) options.min_lr = options.lr / 10;
  if (absl::Status good = CheckTogether(options, seen); !good.ok()) return good;
  return options;
}

std::string HelpText(std::string_view program) {
  const std::string line =
      absl::StrCat(std::string(program), " --pairs FILE --held_out FILE --out DIR [flags]\n");
  return absl::StrCat("Trains a text encoder to find the document of each query, its parameters ",
                      "sharded over all ranks.\n\n  ", line, "  mpirun -n 2 ", line, "\n",
                      llm::FlagLines(Flags()));
}

}  // namespace contrastive
