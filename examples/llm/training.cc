#include "llm/training.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/loader.h"
#include "llm/evaluate.h"
#include "llm/finite.h"
#include "llm/generate.h"
#include "llm/memory_peaks.h"
#include "llm/models/pretrained.h"
#include "llm/run_model.h"
#include "llm/run_states.h"
#include "llm/stopwatch.h"
#include "llm/together.h"
#include "llm/z_loss.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/optim/schedule.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/state.h"
#include "sherd/shard/window.h"

namespace llm {
namespace {

using sherd::Variable;

constexpr char kWhatHelps[] = "a lower --lr, a longer --warmup or --clip 1";

// What a token of text is taken for when a number of bytes is asked for.
constexpr int64_t kBytesOfToken = 4;

// Bottom-up: each block becomes a unit that recomputes inside its one gather; the model takes the
// embedding, the last norm and the head.
void ShardModel(TextModel& model, const sherd::Mesh& mesh, const Options& o) {
  for (sherd::Module* layer : model.layers()) {
    if (o.checkpoint) sherd::Checkpoint(*layer);
    sherd::FullyShard(*layer, mesh, {.reshard_after_forward = o.reshard});
  }
  sherd::FullyShard(model, mesh);
  sherd::Initialize(model, mesh.device(), o.seed);
}

class Trainer {
 public:
  Trainer(const Options& options, const ModelConfig& config, sherd::World& world,
          const Dataset& data, const TrainingHooks& hooks);

  // Takes up the state that the hooks name, or the weights of --init.
  absl::Status Begin();
  absl::Status Run();
  // Writes the trained model where the options ask for it.
  absl::Status Export();
  TrainingResult Finish();

 private:
  // What the model writes behind the prompt; nothing for tokens without a text.
  std::string Sample();
  sherd::StepResult Step(sherd::Window<data::Batch>& window);
  // The mean loss on so many validation samples, spread over all. COLLECTIVE.
  double ValidationLoss(int64_t samples);
  // The validation that belongs to `step`, if any.
  std::optional<double> Validate(int64_t step);
  // What is saved after `step`.
  sherd::TrainingState StateAfter(int64_t step);
  // What ranks agree on before the first backward of a window.
  sherd::BatchCount Count(const data::Batch& batch) const {
    return {.items = loss_.Count(batch.labels),
            .samples = static_cast<int64_t>(batch.samples.size())};
  }

  const Options& options_;
  const ModelConfig& config_;
  sherd::World& world_;
  const Dataset& data_;
  const TrainingHooks& hooks_;
  const sherd::Device& device_;
  const sherd::Schedule schedule_;
  const sherd::CausalLmLoss loss_{{.ignore_index = data::kIgnored}};
  const ZLoss z_loss_{data::kIgnored};
  const std::unique_ptr<TextModel> model_;
  std::optional<sherd::AdamW> optimizer_;
  data::Loader loader_;
  RunStates states_;
  int64_t steps_ = 0;   // made
  int64_t tokens_ = 0;  // trained on
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

Trainer::Trainer(const Options& o, const ModelConfig& config, sherd::World& world,
                 const Dataset& data, const TrainingHooks& hooks)
    : options_(o),
      config_(config),
      world_(world),
      data_(data),
      hooks_(hooks),
      device_(world.device()),
      schedule_(sherd::CosineSchedule({.highest = o.lr,
                                       .lowest = std::min(o.min_lr, o.lr),
                                       .steps = o.steps,
                                       .warmup = std::min(o.warmup, o.steps)})),
      model_(MakeModel(config, device_)),
      loader_(data.train(), LoaderOptionsOf(o, world.size()), world.rank(), world.size(), device_),
      states_(o.out, world, {.steps = o.steps, .save_every = o.save_every, .keep = o.keep}) {
  ShardModel(*model_, world.mesh(), o);
  // After sharding: an optimizer holds the pieces this rank owns.
  optimizer_.emplace(model_->parameters(),
                     sherd::AdamWOptions{.beta2 = 0.95, .weight_decay = o.weight_decay});
  result_.parameters = model_->size();
}

sherd::StepResult Trainer::Step(sherd::Window<data::Batch>& window) {
  for (const data::Batch& batch : window) {
    const sherd::Recording on(
        tape_, {.seed = options_.seed, .step = window.step(), .samples = batch.samples});
    const Variable logits = (*model_)(InputOf(batch));
    if (options_.z_loss > 0.0) {
      window.Backward({loss_(logits, batch.labels), z_loss_(logits, batch.labels)});
    } else {
      window.Backward(loss_(logits, batch.labels));
    }
  }
  return window.Finish(*optimizer_, schedule_,
                       {.clip = options_.clip, .non_finite = sherd::NonFinite::kSkip});
}

double Trainer::ValidationLoss(int64_t samples) {
  const data::Samples& held_out = data_.validation();
  return Evaluate(*model_, world_, held_out, SpreadRows(held_out, samples),
                  RowsOf(options_, world_.size()));
}

std::optional<double> Trainer::Validate(int64_t step) {
  const bool last = step == options_.steps;
  if (!last && (options_.eval_every == 0 || step % options_.eval_every != 0)) return std::nullopt;
  return ValidationLoss(last ? data_.validation().size() : options_.eval_windows);
}

absl::Status Trainer::Begin() {
  if (hooks_.state.empty()) {
    if (options_.init.empty()) return absl::OkStatus();
    const auto loaded = LoadWeights(options_.init, *model_, world_.group());
    if (!loaded.ok()) return loaded.status();
    result_.loss_before = ValidationLoss(data_.validation().size());
    return absl::OkStatus();
  }
  sherd::TrainingState state{.model = model_.get(), .optimizer = &*optimizer_};
  const auto loaded = sherd::LoadState(hooks_.state, state, world_.group());
  if (!loaded.ok()) return loaded.status();
  const auto position = state.entries.find("loader");
  const absl::Status placed =
      position != state.entries.end()
          ? loader_.Restore(position->second)
          : absl::FailedPreconditionError("the state has no position in the data");
  if (!placed.ok()) {
    return absl::Status(placed.code(),
                        absl::StrCat("state ", hooks_.state, ": ", std::string(placed.message())));
  }
  steps_ = state.step;
  tokens_ = hooks_.last.tokens;
  return absl::OkStatus();
}

sherd::TrainingState Trainer::StateAfter(int64_t step) {
  std::map<std::string, std::string> entries = {
      {"loader", loader_.state()},
      {kConfigEntry, ConfigText(config_, options_.f64 ? sherd::DType::kF64 : sherd::DType::kF32)}};
  if (data_.tokenizer() != nullptr) entries[kTokenizerEntry] = options_.init;
  return {.model = model_.get(),
          .optimizer = &*optimizer_,
          .step = step,
          .entries = std::move(entries)};
}

absl::Status Trainer::Run() {
  const bool two = options_.z_loss > 0.0;
  std::vector<sherd::LossTerm> losses = {{}};
  if (two) losses.push_back({.name = "z_loss", .weight = options_.z_loss});
  // A window takes all that the loader gives, which is a sample a micro-batch at most.
  sherd::Accumulation accumulation(
      *model_, {.micro_batches = options_.batch + 1, .losses = std::move(losses)});
  accumulation.set_steps(steps_);
  const auto count = [this](const data::Batch& batch) { return Count(batch); };
  const auto next = [&] {
    return two ? accumulation.Next(loader_, count, count) : accumulation.Next(loader_, count);
  };
  const Stopwatch run;
  Stopwatch step_time;
  while (accumulation.steps() < options_.steps) {
    auto window = next();
    if (!window) break;
    const sherd::StepResult step = Step(*window);
    if (step.why == sherd::StepSkip::kEmpty) continue;  // no sample of it has a label
    if (absl::Status finite = CheckFinite(step, kWhatHelps); !finite.ok()) return finite;
    const double seconds = step_time.Seconds();
    tokens_ += step.items;
    const std::optional<double> validation_loss = Validate(step.step);
    if (validation_loss) result_.validation_loss = *validation_loss;
    const Together all =
        TellAll(world_.group(), {.peak_bytes = device_.allocator().stats().total.peak_bytes,
                                 .stop = hooks_.stop_asked && hooks_.stop_asked(),
                                 .written = states_.written()});
    const StepRecord record = {.step = step.step,
                               .loss = step.losses[0],
                               .z_loss = two ? std::optional(step.losses[1]) : std::nullopt,
                               .validation_loss = validation_loss,
                               .gradient_norm = step.grad_norm,
                               .learning_rate = step.learning_rate,
                               .samples = step.samples,
                               .micro_batches = step.micro_batches,
                               .tokens = tokens_,
                               .tokens_per_second = static_cast<double>(step.items) / seconds,
                               .peak_bytes = std::max(all.peak_bytes, hooks_.last.peak_bytes),
                               .seconds = hooks_.last.seconds + run.Seconds()};
    if (absl::Status status = hooks_.on_step ? hooks_.on_step(record) : absl::OkStatus();
        !status.ok()) {
      world_.group().Abort(status);
      return status;
    }
    const absl::StatusOr<bool> ends =
        states_.After(step.step, all, [&] { return StateAfter(step.step); });
    if (!ends.ok()) return ends.status();
    if (*ends) {
      result_.stopped_at = step.step;
      return absl::OkStatus();
    }
    step_time.Restart();
  }
  // Of a run that was complete already.
  if (steps_ == options_.steps) result_.validation_loss = Validate(steps_).value_or(0.0);
  return states_.End();
}

absl::Status Trainer::Export() {
  if (options_.export_to.empty() || result_.stopped_at) return absl::OkStatus();
  const auto saved = SavePretrained(options_.export_to, config_, *model_, world_.group(),
                                    {.dtype = sherd::DType::kF32});
  if (!saved.ok()) return saved.status();
  const bool copies = world_.rank() == 0 && !options_.init.empty();
  return sherd::AgreeOn(
      world_.group(), copies ? CopyTokenizer(options_.init, options_.export_to) : absl::OkStatus());
}

TrainingResult Trainer::Finish() {
  result_.memory = PeaksByCategory(device_);
  if (!result_.stopped_at) result_.sample = Sample();
  return std::move(result_);
}

std::string Trainer::Sample() {
  if (data_.bytes()) {
    const GenerateOptions generate = {
        .bytes = options_.generate, .temperature = options_.temperature, .seed = options_.seed};
    return Generate(*model_, options_.prompt, generate, device_);
  }
  const data::BpeTokenizer* const tokenizer = data_.tokenizer();
  if (tokenizer == nullptr) return "";
  const std::vector<int32_t> prompt = tokenizer->Encode(options_.prompt);
  if (prompt.empty()) return "";
  const std::vector<int64_t> drawn =
      Continue(*model_, {prompt.begin(), prompt.end()},
               {.tokens = options_.generate / kBytesOfToken,
                .sampling = {.temperature = options_.temperature, .seed = options_.seed}},
               device_);
  return tokenizer->Decode(std::vector<int32_t>(drawn.begin(), drawn.end()));
}

}  // namespace

int64_t RowsOf(const Options& o, int ranks) {
  if (o.token_budget > 0) return std::max<int64_t>(o.token_budget / o.seq, 1);
  const int64_t parts = o.micro_batches * ranks;
  return (o.batch + parts - 1) / parts;
}

absl::StatusOr<TrainingResult> TrainModel(const Options& options, const ModelConfig& config,
                                          sherd::World& world, const Dataset& data,
                                          const TrainingHooks& hooks) {
  Trainer trainer(options, config, world, data, hooks);
  if (absl::Status status = trainer.Begin(); !status.ok()) return status;
  if (absl::Status status = trainer.Run(); !status.ok()) return status;
  if (absl::Status status = trainer.Export(); !status.ok()) return status;
  return trainer.Finish();
}

}  // namespace llm
