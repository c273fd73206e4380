#include "llm/training.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "data/loader.h"
#include "llm/evaluate.h"
#include "llm/generate.h"
#include "llm/model.h"
#include "llm/z_loss.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/optim/schedule.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/window.h"

namespace llm {
namespace {

using sherd::Variable;

LlamaConfig ConfigOf(const Options& o, int64_t vocabulary) {
  return {.vocabulary = vocabulary,
          .dim = o.dim,
          .layers = o.layers,
          .heads = o.heads,
          .kv_heads = o.kv_heads,
          .ffn = o.ffn_size(),
          .positions = o.seq,
          .tied = o.tied,
          .dropout = o.dropout,
          .dtype = o.f64 ? sherd::DType::kF64 : sherd::DType::kF32};
}

// Bottom-up: each block becomes a unit that recomputes inside its one gather; the model takes the
// embedding, the last norm and the head.
void ShardModel(Llama& model, const sherd::Mesh& mesh, const Options& o) {
  for (Block& block : model.blocks()) {
    if (o.checkpoint) sherd::Checkpoint(block);
    sherd::FullyShard(block, mesh, {.reshard_after_forward = o.reshard});
  }
  sherd::FullyShard(model, mesh);
  sherd::Initialize(model, mesh.device(), o.seed);
}

// The largest `value` of any rank. Reductions only sum, so every rank has a slot. COLLECTIVE.
int64_t Largest(sherd::ProcessGroup& group, int64_t value) {
  std::vector<int64_t> slots(static_cast<size_t>(group.size()), 0);
  slots[static_cast<size_t>(group.rank())] = value;
  group.AllReduce(slots.data(), group.size(), sherd::DType::kI64, {.op = "peak memory"});
  return *std::max_element(slots.begin(), slots.end());
}

std::vector<std::pair<std::string, int64_t>> PeaksByCategory(const sherd::Device& device) {
  const sherd::MemoryStats stats = device.allocator().stats();
  std::vector<std::pair<std::string, int64_t>> peaks;
  for (int i = 0; i < sherd::kMemoryCategories; ++i) {
    const auto category = static_cast<sherd::MemoryCategory>(i);
    const int64_t bytes = stats[category].peak_bytes;
    if (bytes > 0) peaks.emplace_back(sherd::NameOf(category), bytes);
  }
  return peaks;
}

class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }
  void Restart() { began_ = std::chrono::steady_clock::now(); }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

// Neither loss nor gradients of f32 recover by themselves once they overflowed.
absl::Status CheckFinite(const sherd::StepResult& step) {
  if (std::isfinite(step.loss) && !step.skipped) return absl::OkStatus();
  return absl::OutOfRangeError(
      absl::StrCat(std::isfinite(step.loss) ? "the gradient norm" : "the loss", " of step ",
                   step.step, " is not finite: training has diverged; a lower --lr, a longer ",
                   "--warmup or --clip 1 may help"));
}

class Trainer {
 public:
  Trainer(const Options& options, sherd::World& world, const Dataset& data);

  absl::Status Run(const std::function<absl::Status(const StepRecord&)>& on_step);
  TrainingResult Finish();

 private:
  sherd::StepResult Step(sherd::Window<data::Batch>& window);
  // The validation that belongs to `step`, if any.
  std::optional<double> Validate(int64_t step);
  // What ranks agree on before the first backward of a window.
  sherd::BatchCount Count(const data::Batch& batch) const {
    return {.items = loss_.Count(batch.labels),
            .samples = static_cast<int64_t>(batch.samples.size())};
  }

  const Options& options_;
  sherd::World& world_;
  const Dataset& data_;
  const sherd::Device& device_;
  const sherd::Schedule schedule_;
  const sherd::CausalLmLoss loss_{{.ignore_index = data::kIgnored}};
  const ZLoss z_loss_{data::kIgnored};
  Llama model_;
  std::optional<sherd::AdamW> optimizer_;
  data::Loader loader_;
  sherd::Tape tape_;
  TrainingResult result_;
};

data::LoaderOptions LoaderOptionsOf(const Options& o, int ranks) {
  return {.window = o.batch,
          .rows = RowsOf(o, ranks),
          .token_budget = o.token_budget,
          .epochs = o.steps,  // enough: an epoch has a step at least
          .seed = o.seed};
}

Trainer::Trainer(const Options& o, sherd::World& world, const Dataset& data)
    : options_(o),
      world_(world),
      data_(data),
      device_(world.device()),
      schedule_(sherd::CosineSchedule({.highest = o.lr,
                                       .lowest = std::min(o.min_lr, o.lr),
                                       .steps = o.steps,
                                       .warmup = std::min(o.warmup, o.steps)})),
      model_(ConfigOf(o, data.vocabulary()), device_),
      loader_(data.train(), LoaderOptionsOf(o, world.size()), world.rank(), world.size(), device_) {
  ShardModel(model_, world.mesh(), o);
  // After sharding: an optimizer holds the pieces this rank owns.
  optimizer_.emplace(model_.parameters(),
                     sherd::AdamWOptions{.beta2 = 0.95, .weight_decay = o.weight_decay});
  result_.parameters = model_.size();
}

sherd::StepResult Trainer::Step(sherd::Window<data::Batch>& window) {
  for (const data::Batch& batch : window) {
    const sherd::Recording on(
        tape_, {.seed = options_.seed, .step = window.step(), .samples = batch.samples});
    const Variable logits = model_(batch.tokens, batch.cu_seqlens);
    if (options_.z_loss > 0.0) {
      window.Backward({loss_(logits, batch.labels), z_loss_(logits, batch.labels)});
    } else {
      window.Backward(loss_(logits, batch.labels));
    }
  }
  return window.Finish(*optimizer_, schedule_,
                       {.clip = options_.clip, .non_finite = sherd::NonFinite::kSkip});
}

std::optional<double> Trainer::Validate(int64_t step) {
  const bool last = step == options_.steps;
  if (!last && (options_.eval_every == 0 || step % options_.eval_every != 0)) return std::nullopt;
  const data::Samples& held_out = data_.validation();
  return Evaluate(model_, world_, held_out,
                  SpreadRows(held_out, last ? held_out.size() : options_.eval_windows),
                  RowsOf(options_, world_.size()));
}

absl::Status Trainer::Run(const std::function<absl::Status(const StepRecord&)>& on_step) {
  const bool two = options_.z_loss > 0.0;
  std::vector<sherd::LossTerm> losses = {{}};
  if (two) losses.push_back({.name = "z_loss", .weight = options_.z_loss});
  // A window takes all that the loader gives, which is a sample a micro-batch at most.
  sherd::Accumulation accumulation(
      model_, {.micro_batches = options_.batch + 1, .losses = std::move(losses)});
  const auto count = [this](const data::Batch& batch) { return Count(batch); };
  const auto next = [&] {
    return two ? accumulation.Next(loader_, count, count) : accumulation.Next(loader_, count);
  };
  int64_t tokens = 0;
  const Stopwatch run;
  Stopwatch step_time;
  while (accumulation.steps() < options_.steps) {
    auto window = next();
    if (!window) break;
    const sherd::StepResult step = Step(*window);
    if (step.why == sherd::StepSkip::kEmpty) continue;  // no sample of it has a label
    if (absl::Status finite = CheckFinite(step); !finite.ok()) return finite;
    const double seconds = step_time.Seconds();
    tokens += step.items;
    const std::optional<double> validation_loss = Validate(step.step);
    if (validation_loss) result_.validation_loss = *validation_loss;
    const int64_t peak = device_.allocator().stats().total.peak_bytes;
    const StepRecord record = {.step = step.step,
                               .loss = step.losses[0],
                               .z_loss = two ? std::optional(step.losses[1]) : std::nullopt,
                               .validation_loss = validation_loss,
                               .gradient_norm = step.grad_norm,
                               .learning_rate = step.learning_rate,
                               .samples = step.samples,
                               .micro_batches = step.micro_batches,
                               .tokens = tokens,
                               .tokens_per_second = static_cast<double>(step.items) / seconds,
                               .peak_bytes = Largest(world_.group(), peak),
                               .seconds = run.Seconds()};
    if (on_step != nullptr) {
      if (absl::Status status = on_step(record); !status.ok()) {
        world_.group().Abort(status);
        return status;
      }
    }
    step_time.Restart();
  }
  return absl::OkStatus();
}

TrainingResult Trainer::Finish() {
  result_.memory = PeaksByCategory(device_);
  if (!data_.bytes()) return std::move(result_);
  const GenerateOptions generate = {
      .bytes = options_.generate, .temperature = options_.temperature, .seed = options_.seed};
  result_.sample = Generate(model_, options_.prompt, generate, device_);
  return std::move(result_);
}

}  // namespace

int64_t RowsOf(const Options& o, int ranks) {
  if (o.token_budget > 0) return std::max<int64_t>(o.token_budget / o.seq, 1);
  const int64_t parts = o.micro_batches * ranks;
  return (o.batch + parts - 1) / parts;
}

absl::StatusOr<TrainingResult> TrainModel(
    const Options& options, sherd::World& world, const Dataset& data,
    const std::function<absl::Status(const StepRecord&)>& on_step) {
  Trainer trainer(options, world, data);
  if (absl::Status status = trainer.Run(on_step); !status.ok()) return status;
  return trainer.Finish();
}

}  // namespace llm
