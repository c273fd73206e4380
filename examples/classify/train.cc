// Trains a classifier of sequences, sharded over the ranks of a launch.

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "classify/data.h"
#include "classify/loss.h"
#include "classify/model.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/launch.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/window.h"

namespace classify {
namespace {

constexpr int64_t kHeldOut = int64_t{1} << 40;  // the first sample that is never trained on

// The share of held-out sequences whose largest logit is that of their class. COLLECTIVE.
double Accuracy(Classifier& model, const Options& o, sherd::World& world) {
  const int64_t rows = 240 / world.size();
  const Batch batch = MakeBatch(o, kHeldOut + world.rank() * rows, rows, world.device());
  const std::vector<float> logits = model(batch.tokens, batch.mask).value().ToHost<float>();
  const std::vector<int64_t> labels = batch.labels.labels.ToHost<int64_t>();
  int64_t right = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const auto row = logits.begin() + static_cast<int64_t>(i) * kClasses;
    right += std::max_element(row, row + kClasses) - row == labels[i];
  }
  world.group().AllReduce(&right, 1, sherd::DType::kI64, {.op = "accuracy"});
  return static_cast<double>(right) / static_cast<double>(rows * world.size());
}

void Train(const Options& o, sherd::World& world) {
  Classifier model(o, world.device());
  for (Block& block : model.blocks()) FullyShard(sherd::Checkpoint(block), world.mesh());
  FullyShard(model, world.mesh());
  Initialize(model, world.device(), static_cast<uint64_t>(o.seed));
  sherd::AdamW optimizer(model.parameters());
  const ClassifierLoss loss(
      {.smoothing = 0.1,
       .penalty = o.penalty,
       .labels_device = o.move_labels ? sherd::LabelsDevice::kMove : sherd::LabelsDevice::kRefuse});
  // A step's samples are cut into micro-batches first and over ranks second.
  const int64_t rows = o.batch / (o.micro_batches * world.size());
  int64_t next = world.rank() * rows;
  const auto loader = [&]() -> std::optional<Batch> {
    if (next >= o.steps * o.batch) return std::nullopt;
    Batch batch = MakeBatch(o, next, rows, world.device());
    next += o.batch / o.micro_batches;
    return batch;
  };
  sherd::Accumulation accumulation(model, {.micro_batches = o.micro_batches});
  sherd::Tape tape;
  while (auto window = accumulation.Next(loader, loss)) {
    for (const Batch& batch : *window) {
      const sherd::Recording on(tape, {.seed = static_cast<uint64_t>(o.seed),
                                       .step = window->step(),
                                       .samples = batch.samples});
      window->Backward(loss(model(batch.tokens, batch.mask), batch.labels));
    }
    const sherd::StepResult step = window->Finish(optimizer, o.lr, {.clip = 1.0});
    if (world.rank() == 0) {
      std::printf("step %lld loss %.9g\n", static_cast<long long>(step.step), step.loss);
    }
  }
  const double accuracy = Accuracy(model, o, world);
  if (world.rank() == 0) std::printf("accuracy %.4f\n", accuracy);
}

int Complain(const absl::Status& status, int code) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return code;
}

int Main(std::span<const char* const> arguments) {
  const auto launch = sherd::ParseLaunch(sherd::ProcessEnvironment());
  if (!launch.ok()) return Complain(launch.status(), 2);
  const auto options = ParseOptions(arguments, launch->size);
  if (!options.ok()) return Complain(options.status(), 2);
  try {
    auto world = sherd::World::FromLaunch(*launch, {.log = sherd::StderrLogSink()});
    if (!world.ok()) return Complain(world.status(), 1);
    Train(*options, *world);
    const absl::Status left = world->Finish();
    return left.ok() ? 0 : Complain(left, 1);
  } catch (const sherd::Error& error) {
    return Complain(error.status(), 1);
  }
}

}  // namespace
}  // namespace classify

int main(int argc, char** argv) {
  return classify::Main({argv + 1, static_cast<size_t>(argc - 1)});
}
