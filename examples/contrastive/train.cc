// Trains a text encoder on pairs, sharded over the ranks of a launch: see README.md.

#include <algorithm>
#include <cstdio>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "contrastive/encoder.h"
#include "contrastive/options.h"
#include "contrastive/pairs.h"
#include "contrastive/summary.h"
#include "contrastive/training.h"
#include "llm/program.h"
#include "llm/report.h"
#include "llm/run_output.h"
#include "llm/run_start.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/comm/launch.h"
#include "sherd/runtime/comm/world.h"

namespace contrastive {
namespace {

constexpr char kName[] = "train";

// What a run needs before it begins, which every rank reads for itself.
struct Inputs {
  Encoder encoder;
  Data pairs;
  Data held_out;
};

// Errors: those of the parts, naming what is wrong before anything is made.
absl::StatusOr<Inputs> ReadInputs(const Options& o, int ranks) {
  auto pairs = ReadPairs(o.pairs);
  if (!pairs.ok()) return pairs.status();
  auto held_out = ReadPairs(o.held_out);
  if (!held_out.ok()) return held_out.status();
  if (absl::Status fits = CheckRun(o, *pairs, *held_out, ranks); !fits.ok()) return fits;
  auto encoder = MakeEncoder(o, *pairs);
  if (!encoder.ok()) return encoder.status();
  auto pair_tokens = Tokenize(*encoder, o.pairs, pairs->texts);
  if (!pair_tokens.ok()) return pair_tokens.status();
  auto held_out_tokens = Tokenize(*encoder, o.held_out, held_out->texts);
  if (!held_out_tokens.ok()) return held_out_tokens.status();
  return Inputs{*std::move(encoder),
                {*std::move(pairs), *std::move(pair_tokens)},
                {*std::move(held_out), *std::move(held_out_tokens)}};
}

// Whether all ranks have read the same, since hosts may have files of their own. COLLECTIVE.
// Errors, on all ranks: kInvalidArgument naming file and rank.
absl::Status CheckAlike(const Options& o, const Inputs& inputs, sherd::World& world) {
  for (const auto& [file, data] :
       {std::pair(&o.pairs, &inputs.pairs), std::pair(&o.held_out, &inputs.held_out)}) {
    const std::vector<std::string> read =
        sherd::GatherTexts(world.group(), absl::StrCat(FingerprintOf(*data)));
    const auto other = std::ranges::find_if(read, [&](const auto& r) { return r != read[0]; });
    if (other == read.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("rank ", other - read.begin(),
                                                   " has other pairs in ", *file,
                                                   ", or other tokens for them, than rank 0"));
  }
  return absl::OkStatus();
}

// Writes the report and prints the last lines, which scripts read.
absl::Status Close(const Options& o, const sherd::LaunchInfo& launch, const Inputs& inputs,
                   const TrainingResult& result, llm::RunOutput& output) {
  absl::StatusOr<std::vector<llm::StepRecord>> steps = output.Close();
  if (!steps.ok()) return steps.status();
  const std::string path = o.out + "/report.html";
  absl::Status written =
      llm::WriteReport(path, MakeReport(o, launch, inputs.encoder, inputs.pairs, inputs.held_out,
                                        result, *std::move(steps)));
  if (!written.ok()) return written;
  std::printf("\n%sreport          %s\n", ResultText(result).c_str(), path.c_str());
  std::fflush(stdout);
  return absl::OkStatus();
}

// All that needs every rank. Returns the exit code, or what all ranks agree on; throws what one of
// them met alone.
absl::StatusOr<int> Run(const Options& o, const sherd::LaunchInfo& launch, sherd::World& world) {
  const absl::StatusOr<Inputs> inputs = ReadInputs(o, world.size());
  if (absl::Status read = sherd::AgreeOn(world.group(), inputs.status()); !read.ok()) return read;
  if (absl::Status alike = CheckAlike(o, *inputs, world); !alike.ok()) return alike;
  const llm::RunPlan plan = {
      .out = o.out,
      .export_to = o.export_to,
      .steps = o.steps,
      .log_every = o.log_every,
      .save_every = o.save_every,
      .resume = o.resume,
      .description = Announcement(o, launch, inputs->encoder, inputs->pairs, inputs->held_out)};
  llm::RunOutput output;
  const auto hooks = llm::BeginRun(plan, launch, world, output);
  if (!hooks.ok()) return hooks.status();
  const auto result = Train(o, inputs->encoder, world, inputs->pairs, inputs->held_out, *hooks);
  if (!result.ok()) return result.status();
  if (result->stopped_at) return llm::EndEarly(kName, plan, launch, *result->stopped_at);
  const absl::Status closed =
      world.rank() == 0 ? Close(o, launch, *inputs, *result, output) : absl::OkStatus();
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
