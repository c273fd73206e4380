// Trains a text encoder on pairs, sharded over the ranks of a launch: see README.md.

#include <cstdio>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "contrastive/encoder.h"
#include "contrastive/options.h"
#include "contrastive/pairs.h"
#include "contrastive/summary.h"
#include "contrastive/training.h"
#include "llm/program.h"
#include "llm/report.h"
#include "llm/run_output.h"
#include "llm/run_states.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/comm/launch.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/runtime/io/safetensors_folder.h"

namespace contrastive {
namespace {

constexpr char kName[] = "train";

// What a run needs before it begins, which every rank reads for itself.
struct Inputs {
  Encoder encoder;
  Data pairs;
  Data held_out;
};

absl::StatusOr<Inputs> ReadInputs(const Options& o) {
  auto pairs = ReadPairs(o.pairs);
  if (!pairs.ok()) return pairs.status();
  auto held_out = ReadPairs(o.held_out);
  if (!held_out.ok()) return held_out.status();
  auto encoder = MakeEncoder(o, *pairs);
  if (!encoder.ok()) return encoder.status();
  auto pair_tokens = Tokenize(*encoder, pairs->texts);
  if (!pair_tokens.ok()) return pair_tokens.status();
  auto held_out_tokens = Tokenize(*encoder, held_out->texts);
  if (!held_out_tokens.ok()) return held_out_tokens.status();
  return Inputs{*std::move(encoder),
                {*std::move(pairs), *std::move(pair_tokens)},
                {*std::move(held_out), *std::move(held_out_tokens)}};
}

// Writes the report and prints the last lines, which scripts read.
absl::Status Close(const Options& o, const sherd::LaunchInfo& launch, const Inputs& inputs,
                   const TrainingResult& result, std::vector<llm::StepRecord> steps) {
  const std::string path = o.out + "/report.html";
  absl::Status written =
      llm::WriteReport(path, MakeReport(o, launch, inputs.encoder, inputs.pairs, inputs.held_out,
                                        result, std::move(steps)));
  if (!written.ok()) return written;
  std::printf("\n%sreport          %s\n", ResultText(result).c_str(), path.c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

// All that needs every rank. Returns the exit code, or what all ranks agree on; throws what one of
// them met alone.
absl::StatusOr<int> Run(const Options& o, const sherd::LaunchInfo& launch, sherd::World& world) {
  const bool speaks = world.rank() == 0;
  const absl::StatusOr<Inputs> inputs = ReadInputs(o);
  if (absl::Status read = sherd::AgreeOn(world.group(), inputs.status()); !read.ok()) return read;
  const auto state = llm::StateToResume(o.out, o.resume, world);
  if (!state.ok()) return state.status();
  llm::RunOutput output;
  absl::Status opened = absl::OkStatus();
  if (speaks && !o.export_to.empty()) opened = sherd::SafetensorsFolderWriter::Check(o.export_to);
  if (speaks && opened.ok()) {
    opened = output.Open({.out = o.out,
                          .steps = o.steps,
                          .log_every = o.log_every,
                          .resume = o.resume,
                          .from = state->second},
                         launch);
  }
  if (absl::Status status = sherd::AgreeOn(world.group(), opened); !status.ok()) return status;
  if (speaks) {
    std::printf("%s\n",
                Announcement(o, launch, inputs->encoder, inputs->pairs, inputs->held_out).c_str());
    if (!state->first.empty()) {
      std::printf("goes on after step %lld, from %s\n", static_cast<long long>(state->second),
                  state->first.c_str());
    }
    std::fflush(stdout);
  }
  if (o.save_every > 0) llm::HeedStop();
  TrainingHooks hooks;
  if (speaks) hooks.on_step = [&](const llm::StepRecord& record) { return output.Add(record); };
  hooks.stop_asked = llm::StopAsked;
  hooks.last = output.last();
  hooks.state = state->first;
  const auto result = Train(o, inputs->encoder, world, inputs->pairs, inputs->held_out, hooks);
  if (!result.ok()) return result.status();
  if (result->stopped_at) {
    if (speaks) {
      std::fprintf(stderr, "%s: SIGTERM: saved step %lld in %s; --resume goes on from there\n",
                   kName, static_cast<long long>(*result->stopped_at),
                   llm::StatesFolder(o.out).c_str());
    }
    return llm::kStopped;
  }
  const absl::Status closed =
      speaks ? Close(o, launch, *inputs, *result, output.Close()) : absl::OkStatus();
  if (absl::Status status = sherd::AgreeOn(world.group(), closed); !status.ok()) return status;
  return 0;
}

int Main(std::span<const char* const> arguments) {
  const absl::StatusOr<sherd::LaunchInfo> launch = sherd::ParseLaunch(sherd::ProcessEnvironment());
  if (!launch.ok()) return llm::Fail(kName, {}, launch.status(), llm::kUsage);
  const absl::StatusOr<Options> options = ParseOptions(arguments.subspan(1));
  if (!options.ok()) return llm::Fail(kName, *launch, options.status(), llm::kUsage);
  if (options->help) {
    if (launch->rank == 0) std::fputs(HelpText("sherd_train_contrastive").c_str(), stdout);
    return 0;
  }
  return llm::RunInWorld(
      kName, *launch,
      {.device = options->cuda ? sherd::DeviceKind::kCuda : sherd::DeviceKind::kCpu,
       .threads = static_cast<int>(options->threads),
       .rendezvous_timeout = options->timeout,
       .collective_timeout = options->timeout,
       .log = sherd::StderrLogSink()},
      [&](sherd::World& world) { return Run(*options, *launch, world); });
}

}  // namespace
}  // namespace contrastive

int main(int argc, char** argv) {
  return contrastive::Main(std::span<const char* const>(argv, static_cast<size_t>(argc)));
}
