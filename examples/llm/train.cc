// Trains a Llama-style language model on text or tokens, sharded over the ranks of a launch.

#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "llm/bigram.h"
#include "llm/dataset.h"
#include "llm/escape.h"
#include "llm/options.h"
#include "llm/program.h"
#include "llm/report.h"
#include "llm/run_model.h"
#include "llm/run_output.h"
#include "llm/run_start.h"
#include "llm/summary.h"
#include "llm/training.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/comm/launch.h"
#include "sherd/runtime/comm/world.h"

namespace llm {
namespace {

constexpr char kName[] = "train";

// Writes the report and prints the last lines, which scripts read.
absl::Status Close(const Options& o, const sherd::LaunchInfo& launch, const Dataset& data,
                   const TrainingResult& result, RunOutput& output) {
  absl::StatusOr<std::vector<StepRecord>> steps = output.Close();
  if (!steps.ok()) return steps.status();
  std::optional<double> bigram;
  if (data.bytes()) bigram = Bigram(data.train()).MeanLoss(data.validation());
  if (!result.sample.empty()) {
    const std::string prompt = o.prompt == "\n" ? "" : o.prompt;
    std::printf("\n%s\n", ValidUtf8(prompt + result.sample).c_str());
  }
  const std::string path = o.out + "/report.html";
  absl::Status written =
      WriteReport(path, MakeReport(o, launch, data, result, *std::move(steps), bigram));
  if (!written.ok()) return written;
  std::printf("\nvalidation loss %.4f nats per %s\n", result.validation_loss, data.unit());
  if (result.loss_before) {
    std::printf("before training %.4f nats per %s\n", *result.loss_before, data.unit());
  }
  if (bigram) {
    std::printf("byte bigram     %.4f nats per byte, fitted on the same text\n", *bigram);
  }
  std::printf("report          %s\n", path.c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

// All that needs every rank. Returns the exit code, or what all ranks agree on; throws what one of
// them met alone.
absl::StatusOr<int> Run(const Options& given, const sherd::LaunchInfo& launch,
                        sherd::World& world) {
  const absl::StatusOr<Dataset> data = Dataset::Open(given);
  if (absl::Status status = sherd::AgreeOn(world.group(), data.status()); !status.ok()) {
    return status;
  }
  const absl::StatusOr<ModelConfig> config = RunModelConfig(given, data->vocabulary());
  if (absl::Status status = sherd::AgreeOn(world.group(), config.status()); !status.ok()) {
    return status;
  }
  const Options options = given.init.empty() ? given : WithSizesOf(*config, given);
  const RunPlan plan = {.out = options.out,
                        .export_to = options.export_to,
                        .steps = options.steps,
                        .log_every = options.log_every,
                        .save_every = options.save_every,
                        .resume = options.resume,
                        .description = Announcement(options, launch, *data)};
  RunOutput output;
  const absl::StatusOr<TrainingHooks> hooks = BeginRun(plan, launch, world, output);
  if (!hooks.ok()) return hooks.status();
  const absl::StatusOr<TrainingResult> result = TrainModel(options, *config, world, *data, *hooks);
  if (!result.ok()) return result.status();
  if (result->stopped_at) return EndEarly(kName, plan, launch, *result->stopped_at);
  const absl::Status closed =
      world.rank() == 0 ? Close(options, launch, *data, *result, output) : absl::OkStatus();
  if (absl::Status status = sherd::AgreeOn(world.group(), closed); !status.ok()) return status;
  return 0;
}

int Main(std::span<const char* const> arguments) {
  const absl::StatusOr<sherd::LaunchInfo> launch = sherd::ParseLaunch(sherd::ProcessEnvironment());
  if (!launch.ok()) return Fail(kName, {}, launch.status(), kUsage);
  const absl::StatusOr<Options> options = ParseOptions(arguments.subspan(1));
  if (!options.ok()) return Fail(kName, *launch, options.status(), kUsage);
  if (options->help) {
    if (launch->rank == 0) std::fputs(HelpText("sherd_train_llm").c_str(), stdout);
    return 0;
  }
  return RunInWorld(kName, *launch,
                    {.device = options->cuda ? sherd::DeviceKind::kCuda : sherd::DeviceKind::kCpu,
                     .threads = static_cast<int>(options->threads),
                     .rendezvous_timeout = options->timeout,
                     .collective_timeout = options->timeout,
                     .log = sherd::StderrLogSink()},
                    [&](sherd::World& world) { return Run(*options, *launch, world); });
}

}  // namespace
}  // namespace llm

int main(int argc, char** argv) {
  return llm::Main(std::span<const char* const>(argv, static_cast<size_t>(argc)));
}
