// Trains a small model to prefer one answer to another: see README.md.

#include <algorithm>
#include <cstdio>
#include <map>
#include <variant>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "preference/training.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/agree.h"

namespace preference {
namespace {

constexpr char kUsage[] =
    "usage: sherd_train_preference --pairs FILE --held_out FILE [--flag value ...]\n"
    "  files are JSON lines of {\"prompt\", \"chosen\", \"rejected\"}\n"
    "  --metrics FILE  --steps N  --warmup_steps N  --batch N  --micro_batches N  --beta R  --lr "
    "R\n"
    "  --warmup_lr R  --clip R  --dim N  --layers N  --heads N  --seq N  --seed N  --log_every N\n"
    "  --checkpoint 0|1  --f64 0|1\n";

absl::StatusOr<Options> ParseOptions(std::span<const char* const> arguments) {
  using O = Options;
  using Field = std::variant<int64_t O::*, double O::*, bool O::*, std::string O::*, uint64_t O::*>;
  const std::map<std::string, Field> flags = {{"--pairs", &O::pairs},
                                              {"--held_out", &O::held_out},
                                              {"--metrics", &O::metrics},
                                              {"--steps", &O::steps},
                                              {"--warmup_steps", &O::warmup_steps},
                                              {"--batch", &O::batch},
                                              {"--micro_batches", &O::micro_batches},
                                              {"--beta", &O::beta},
                                              {"--lr", &O::lr},
                                              {"--warmup_lr", &O::warmup_lr},
                                              {"--clip", &O::clip},
                                              {"--dim", &O::dim},
                                              {"--layers", &O::layers},
                                              {"--heads", &O::heads},
                                              {"--seq", &O::seq},
                                              {"--seed", &O::seed},
                                              {"--log_every", &O::log_every},
                                              {"--checkpoint", &O::checkpoint},
                                              {"--f64", &O::f64}};
  Options o;
  for (size_t i = 0; i < arguments.size(); i += 2) {
    const std::string name = arguments[i];
    const auto flag = flags.find(name);
    if (flag == flags.end()) return absl::InvalidArgumentError("unknown flag " + name);
    if (i + 1 == arguments.size()) return absl::InvalidArgumentError(name + " wants a value");
    const std::string value = arguments[i + 1];
    const auto set = [&](auto field) {
      using T = std::remove_reference_t<decltype(o.*field)>;
      if constexpr (std::is_same_v<T, std::string>) {
        o.*field = value;
        return !value.empty();
      } else if constexpr (std::is_same_v<T, bool>) {
        o.*field = value == "1";
        return value == "0" || value == "1";
      } else if constexpr (std::is_same_v<T, double>) {
        return absl::SimpleAtod(value, &(o.*field)) && o.*field >= 0.0 && o.*field < 1e6;
      } else {
        return absl::SimpleAtoi(value, &(o.*field)) && o.*field < T{1} << 30;
      }
    };
    if (!std::visit(set, flag->second)) {
      return absl::InvalidArgumentError(absl::StrCat(name, " cannot be '", value, "'"));
    }
  }
  if (o.pairs.empty() || o.held_out.empty()) {
    return absl::InvalidArgumentError("--pairs and --held_out name files");
  }
  if (o.steps < 1 || o.warmup_steps < 0 || o.batch < 1 || o.micro_batches < 1 || o.seq < 2 ||
      o.layers < 1 || o.log_every < 1 || o.beta <= 0.0) {
    return absl::InvalidArgumentError(
        "--steps, --batch, --micro_batches, --layers, --log_every and --beta are positive, "
        "--seq is at least 2");
  }
  if (o.heads < 1 || o.dim < 2 * o.heads || o.dim % (2 * o.heads) != 0) {
    return absl::InvalidArgumentError("--dim is a multiple of 2 x --heads");
  }
  return o;
}

// Prints records and writes them, on rank 0.
class Output {
 public:
  explicit Output(const Options& options) : options_(options) {}
  ~Output() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  absl::Status Open() {
    if (options_.metrics.empty()) return absl::OkStatus();
    file_ = std::fopen(options_.metrics.c_str(), "w");
    if (file_ != nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError("cannot write " + options_.metrics);
  }
  void Add(const Record& r) {
    if (r.held_out) {
      std::printf("%s  held-out loss %.4f  accuracy %.3f  margin %.3f\n",
                  r.step == 0 ? "before" : "after ", r.held_out->loss, r.held_out->accuracy,
                  r.held_out->margin);
    }
    if (r.step > 0 && (r.step % options_.log_every == 0 || r.step == 1)) {
      std::printf("step %lld/%lld  loss %.4f  accuracy %.3f  margin %.3f  norm %.3f\n",
                  static_cast<long long>(r.step), static_cast<long long>(options_.steps), r.loss,
                  r.accuracy, r.margin, r.gradient_norm);
    }
    std::fflush(stdout);
    if (file_ == nullptr) return;
    std::string line = absl::StrFormat(
        "{\"step\": %d, \"loss\": %.17g, \"accuracy\": %.17g, \"margin\": %.17g, "
        "\"gradient_norm\": %.17g, \"learning_rate\": %.17g",
        r.step, r.loss, r.accuracy, r.margin, r.gradient_norm, r.learning_rate);
    if (r.held_out) {
      absl::StrAppendFormat(&line,
                            ", \"held_out_loss\": %.17g, \"held_out_accuracy\": %.17g, "
                            "\"held_out_margin\": %.17g",
                            r.held_out->loss, r.held_out->accuracy, r.held_out->margin);
    }
    std::fprintf(file_, "%s}\n", line.c_str());
  }

 private:
  const Options& options_;
  std::FILE* file_ = nullptr;
};

int Complain(const absl::Status& status, int code) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return code;
}

absl::Status Run(const Options& options, int rank, sherd::World* world, std::span<const Pair> pairs,
                 std::span<const Pair> held_out) {
  Output output(options);
  const absl::Status opened = rank == 0 ? output.Open() : absl::OkStatus();
  if (absl::Status agreed = sherd::AgreeOn(world->group(), opened); !agreed.ok()) return agreed;
  Train(options, *world, pairs, held_out, [&](const Record& record) {
    if (rank == 0) output.Add(record);
  });
  return world->Finish();
}

int Main(std::span<const char* const> arguments) {
  const auto launch = sherd::ParseLaunch(sherd::ProcessEnvironment());
  if (!launch.ok()) return Complain(launch.status(), 2);
  const bool speaks = launch->rank == 0;
  if (!arguments.empty() && std::string_view(arguments[0]) == "--help") {
    if (speaks) std::fputs(kUsage, stdout);
    return 0;
  }
  const auto options = ParseOptions(arguments);
  if (!options.ok()) return speaks ? Complain(options.status(), 2) : 2;
  // Every rank reads the same files, so all find the same errors before they meet.
  const auto pairs = ReadPairs(options->pairs, options->seq);
  if (!pairs.ok()) return speaks ? Complain(pairs.status(), 1) : 1;
  const auto held_out = ReadPairs(options->held_out, options->seq);
  if (!held_out.ok()) return speaks ? Complain(held_out.status(), 1) : 1;
  try {
    auto world = sherd::World::FromLaunch(*launch, {.log = sherd::StderrLogSink()});
    if (!world.ok()) return Complain(world.status(), 1);
    const absl::Status done = Run(*options, launch->rank, &*world, *pairs, *held_out);
    if (done.ok()) return 0;
    return speaks ? Complain(done, 1) : 1;
  } catch (const sherd::Error& error) {
    return Complain(error.status(), 1);
  }
}

}  // namespace
}  // namespace preference

int main(int argc, char** argv) {
  return preference::Main({argv + 1, static_cast<size_t>(argc - 1)});
}
