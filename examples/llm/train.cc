// Trains a Llama-style language model on text or tokens, sharded over the ranks of a launch.

#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "llm/bigram.h"
#include "llm/dataset.h"
#include "llm/escape.h"
#include "llm/metrics.h"
#include "llm/options.h"
#include "llm/progress.h"
#include "llm/report.h"
#include "llm/run_model.h"
#include "llm/summary.h"
#include "llm/training.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/comm/failure_file.h"
#include "sherd/runtime/comm/launch.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/runtime/io/safetensors_folder.h"
#include "sherd/shard/state.h"

namespace llm {
namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;
constexpr int kStopped = 128 + SIGTERM;

// Writes a message to stderr, in one piece since all ranks share it.
void Complain(const sherd::LaunchInfo& launch, const std::string& text) {
  const std::string who = launch.size > 1 ? absl::StrCat(" rank ", launch.rank) : "";
  const std::string line = absl::StrCat("train", who, ": ", text, "\n");
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// What every rank finds out alike needs to be said once.
int Fail(const sherd::LaunchInfo& launch, const absl::Status& status, int code) {
  if (launch.rank == 0) {
    std::fflush(stdout);
    std::fprintf(stderr, "train: %s\n", std::string(status.message()).c_str());
  }
  return code;
}

// What rank 0 shows and writes during a run and at its end; the other ranks do neither.
class Output {
 public:
  // Makes the folder and metrics.jsonl, or goes on with those of a run that saved step `from`.
  // Errors: as MetricsWriter.
  absl::Status Open(const Options& options, const sherd::LaunchInfo& launch, int64_t from) {
    absl::StatusOr<std::unique_ptr<MetricsWriter>> metrics =
        options.resume ? MetricsWriter::Resume(options.out, from, steps_)
                       : MetricsWriter::Create(options.out);
    if (!metrics.ok()) return metrics.status();
    metrics_ = *std::move(metrics);
    // MPI's launchers give ranks a terminal of their own even when they write to a file themselves.
    const bool direct =
        launch.launcher == sherd::Launcher::kNone || launch.launcher == sherd::Launcher::kTorchrun;
    progress_.emplace(stdout, direct && isatty(STDOUT_FILENO) == 1, options.steps,
                      options.log_every);
    return absl::OkStatus();
  }

  // Of a run that goes on: the last step that it keeps.
  StepRecord last() const { return steps_.empty() ? StepRecord() : steps_.back(); }

  absl::Status Add(const StepRecord& record) {
    steps_.push_back(record);
    progress_->Show(record);
    return metrics_->Write(record);
  }

  // Writes the report and prints the last lines, which scripts read.
  absl::Status Close(const Options& o, const sherd::LaunchInfo& launch, const Dataset& data,
                     const TrainingResult& result) {
    progress_.reset();
    std::optional<double> bigram;
    if (data.bytes()) bigram = Bigram(data.train()).MeanLoss(data.validation());
    if (!result.sample.empty()) {
      const std::string prompt = o.prompt == "\n" ? "" : o.prompt;
      std::printf("\n%s\n", ValidUtf8(prompt + result.sample).c_str());
    }
    const std::string path = o.out + "/report.html";
    absl::Status written =
        WriteReport(path, MakeReport(o, launch, data, result, std::move(steps_), bigram));
    if (!written.ok()) return written;
    std::printf("\nvalidation loss %.4f nats per %s\n", result.validation_loss, data.unit());
    if (bigram) {
      std::printf("byte bigram     %.4f nats per byte, fitted on the same text\n", *bigram);
    }
    std::printf("report          %s\n", path.c_str());
    std::fflush(stdout);
    return absl::OkStatus();
  }

 private:
  std::unique_ptr<MetricsWriter> metrics_;
  std::optional<Progress> progress_;
  std::vector<StepRecord> steps_;
};

// Set by SIGTERM, which a scheduler sends before it takes the machine away.
volatile std::sig_atomic_t stop_asked = 0;  // NOLINT: a signal handler has nothing else

void AskToStop(int) { stop_asked = 1; }

// The newest state of the run in --out, as rank 0 sees it, with its step; empty without --resume.
absl::StatusOr<std::pair<std::string, int64_t>> StateToResume(const Options& options,
                                                              sherd::World& world) {
  std::string found;
  absl::Status looked;
  if (options.resume && world.rank() == 0) {
    const auto latest = sherd::LatestState(StatesFolder(options.out));
    looked = latest.status();
    if (latest.ok() && *latest) found = **latest;
  }
  if (absl::Status status = sherd::AgreeOn(world.group(), looked); !status.ok()) return status;
  found = sherd::GatherTexts(world.group(), found)[0];
  if (found.empty()) return std::pair(found, int64_t{0});
  return std::pair(found, std::strtoll(found.substr(found.rfind('-') + 1).c_str(), nullptr, 10));
}

// All that needs every rank. Returns the exit code, or what all ranks agree on; throws what one of
// them met alone.
absl::StatusOr<int> Run(const Options& given, const sherd::LaunchInfo& launch,
                        sherd::World& world) {
  const bool speaks = world.rank() == 0;
  const absl::StatusOr<Dataset> data = Dataset::Open(given);
  if (absl::Status status = sherd::AgreeOn(world.group(), data.status()); !status.ok()) {
    return status;
  }
  const absl::StatusOr<ModelConfig> config = RunModelConfig(given, data->vocabulary());
  if (absl::Status status = sherd::AgreeOn(world.group(), config.status()); !status.ok()) {
    return status;
  }
  const Options options = given.init.empty() ? given : WithSizesOf(*config, given);
  const auto state = StateToResume(options, world);
  if (!state.ok()) return state.status();
  Output output;
  absl::Status opened = absl::OkStatus();
  if (speaks && !options.export_to.empty()) {
    opened = sherd::SafetensorsFolderWriter::Check(options.export_to);
  }
  if (speaks && opened.ok()) opened = output.Open(options, launch, state->second);
  if (absl::Status status = sherd::AgreeOn(world.group(), opened); !status.ok()) return status;
  if (speaks) {
    std::printf("%s\n", Announcement(options, launch, *data).c_str());
    if (!state->first.empty()) {
      std::printf("goes on after step %lld, from %s\n", static_cast<long long>(state->second),
                  state->first.c_str());
    }
    std::fflush(stdout);
  }
  if (options.save_every > 0) std::signal(SIGTERM, AskToStop);
  TrainingHooks hooks;
  if (speaks) hooks.on_step = [&](const StepRecord& record) { return output.Add(record); };
  hooks.stop_asked = [] { return stop_asked != 0; };
  hooks.last = output.last();
  hooks.state = state->first;
  const absl::StatusOr<TrainingResult> result = TrainModel(options, *config, world, *data, hooks);
  if (!result.ok()) return result.status();
  if (result->stopped_at) {
    if (speaks) {
      std::fprintf(stderr, "train: SIGTERM: saved step %lld in %s; --resume goes on from there\n",
                   static_cast<long long>(*result->stopped_at), StatesFolder(options.out).c_str());
    }
    return kStopped;
  }
  const absl::Status closed =
      speaks ? output.Close(options, launch, *data, *result) : absl::OkStatus();
  if (absl::Status status = sherd::AgreeOn(world.group(), closed); !status.ok()) return status;
  return 0;
}

// As Run. The other ranks are told why this one ends before its world is taken down.
absl::StatusOr<int> RunOrAbort(const Options& options, const sherd::LaunchInfo& launch,
                               sherd::World& world) {
  try {
    return Run(options, launch, world);
  } catch (const sherd::Error& error) {
    world.group().Abort(error.status());
    throw;
  }
}

// torchrun shows the text of the rank that failed first.
void TellAgent(const sherd::LaunchInfo& launch, const absl::Status& why) {
  const absl::Status written = sherd::WriteErrorFile(launch.error_file, why);
  if (!written.ok()) Complain(launch, std::string(written.message()));
}

int Main(std::span<const char* const> arguments) {
  const absl::StatusOr<sherd::LaunchInfo> launch = sherd::ParseLaunch(sherd::ProcessEnvironment());
  if (!launch.ok()) return Fail({}, launch.status(), kUsage);
  // A rank whose launcher was killed would hold its memory and wait for peers that are gone.
  if (launch->launcher != sherd::Launcher::kNone) prctl(PR_SET_PDEATHSIG, SIGTERM);

  const absl::StatusOr<Options> options = ParseOptions(arguments.subspan(1));
  if (!options.ok()) return Fail(*launch, options.status(), kUsage);
  if (options->help) {
    if (launch->rank == 0) std::fputs(HelpText("sherd_train_llm").c_str(), stdout);
    return 0;
  }
  try {
    absl::StatusOr<sherd::World> world = sherd::World::FromLaunch(
        *launch, {.device = options->cuda ? sherd::DeviceKind::kCuda : sherd::DeviceKind::kCpu,
                  .threads = static_cast<int>(options->threads),
                  .rendezvous_timeout = options->timeout,
                  .collective_timeout = options->timeout,
                  .log = sherd::StderrLogSink()});
    if (!world.ok()) {
      Complain(*launch, std::string(world.status().message()));
      return kFailure;
    }
    const absl::StatusOr<int> code = RunOrAbort(*options, *launch, *world);
    if (!code.ok()) {
      TellAgent(*launch, code.status());
      return Fail(*launch, code.status(), kFailure);
    }
    if (absl::Status left = world->Finish(); !left.ok()) {
      Complain(*launch, std::string(left.message()));
      return kFailure;
    }
    return *code;
  } catch (const sherd::Error& error) {
    std::fflush(stdout);
    Complain(*launch, error.what());
    TellAgent(*launch, error.status());
    return kFailure;
  }
}

}  // namespace
}  // namespace llm

int main(int argc, char** argv) {
  return llm::Main(std::span<const char* const>(argv, static_cast<size_t>(argc)));
}
