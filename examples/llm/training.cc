#include "llm/training.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "llm/batches.h"
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

LlamaConfig ConfigOf(const Options& o) {
  return {.vocabulary = kVocabulary,
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
  Trainer(const Options& options, sherd::World& world, const TextData& text);

  absl::Status Run(const std::function<absl::Status(const StepRecord&)>& on_step);
  TrainingResult Finish();

 private:
  sherd::StepResult Step(sherd::Window<Batch>& window);
  // The validation that belongs to `step`, if any.
  std::optional<double> Validate(int64_t step);
  std::vector<int64_t> Windows(int64_t most) const {
    return ValidationWindows(static_cast<int64_t>(text_.validation.size()), options_.seq, most);
  }

  const Options& options_;
  sherd::World& world_;
  const TextData& text_;
  const sherd::Device& device_;
  const sherd::Schedule schedule_;
  const sherd::CausalLmLoss loss_{{.ignore_index = kIgnored}};
  const ZLoss z_loss_{kIgnored};
  Llama model_;
  std::optional<sherd::AdamW> optimizer_;
  BatchLoader loader_;
  sherd::Tape tape_;
  TrainingResult result_;
};

Trainer::Trainer(const Options& o, sherd::World& world, const TextData& text)
    : options_(o),
      world_(world),
      text_(text),
      device_(world.device()),
      schedule_(sherd::CosineSchedule({.highest = o.lr,
                                       .lowest = std::min(o.min_lr, o.lr),
                                       .steps = o.steps,
                                       .warmup = std::min(o.warmup, o.steps)})),
      model_(ConfigOf(o), device_),
      loader_(text.train, o, world.rank(), world.size(), device_) {
  ShardModel(model_, world.mesh(), o);
  // After sharding: an optimizer holds the pieces this rank owns.
  optimizer_.emplace(model_.parameters(),
                     sherd::AdamWOptions{.beta2 = 0.95, .weight_decay = o.weight_decay});
  result_.parameters = model_.size();
  result_.validation = Windows(std::numeric_limits<int64_t>::max());
}

sherd::StepResult Trainer::Step(sherd::Window<Batch>& window) {
  for (const Batch& batch : window) {
    const sherd::Recording on(
        tape_, {.seed = options_.seed, .step = window.step(), .samples = batch.samples});
    const Variable logits = model_(batch.tokens);
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
  const std::vector<int64_t> starts = last ? result_.validation : Windows(options_.eval_windows);
  return Evaluate(model_, world_, text_.validation, starts, loader_.rows());
}

absl::Status Trainer::Run(const std::function<absl::Status(const StepRecord&)>& on_step) {
  const bool two = options_.z_loss > 0.0;
  std::vector<sherd::LossTerm> losses = {{}};
  if (two) losses.push_back({.name = "z_loss", .weight = options_.z_loss});
  sherd::Accumulation accumulation(
      model_, {.micro_batches = options_.micro_batches + 1, .losses = std::move(losses)});
  const auto next = [&] {
    return two ? accumulation.Next(loader_, loss_, z_loss_) : accumulation.Next(loader_, loss_);
  };
  int64_t tokens = 0;
  const Stopwatch run;
  Stopwatch step_time;
  while (auto window = next()) {
    const sherd::StepResult step = Step(*window);
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
  const GenerateOptions generate = {
      .bytes = options_.generate, .temperature = options_.temperature, .seed = options_.seed};
  result_.sample = Generate(model_, options_.prompt, generate, device_);
  return std::move(result_);
}

}  // namespace

absl::StatusOr<TrainingResult> TrainModel(
    const Options& options, sherd::World& world, const TextData& text,
    const std::function<absl::Status(const StepRecord&)>& on_step) {
  Trainer trainer(options, world, text);
  if (absl::Status status = trainer.Run(on_step); !status.ok()) return status;
  return trainer.Finish();
}

}  // namespace llm
