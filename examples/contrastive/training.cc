#include "contrastive/training.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "contrastive/batch.h"
#include "contrastive/held_out.h"
#include "data/order.h"
#include "llm/finite.h"
#include "llm/format.h"
#include "llm/memory_peaks.h"
#include "llm/models/pretrained.h"
#include "llm/run_model.h"
#include "llm/run_states.h"
#include "llm/saved_model.h"
#include "llm/stopwatch.h"
#include "llm/together.h"
#include "sherd/autograd/ops/indexing.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/optim/schedule.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/comm/agree.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/random.h"
#include "sherd/shard/cached_step.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/ranking_loss.h"
#include "sherd/shard/window.h"

namespace contrastive {
namespace {

using sherd::Variable;

constexpr char kWhatHelps[] = "a lower --lr, a longer --warmup or a higher --temperature";
constexpr char kTrainedWith[] = "trained with";  // the entry of a state

sherd::RankingOptions RankingOf(const Options& o) {
  // The encoder's own embeddings have length 1.
  return {.temperature = o.temperature, .normalize = false, .symmetric = o.symmetric};
}

// Bottom-up: each layer becomes a unit that recomputes inside its one gather. What an embedding
// does not use stays as it is.
void ShardModel(llm::TextModel& model, const sherd::Mesh& mesh, const Options& o) {
  for (const llm::NamedWeight& weight : model.Weights()) {
    if (absl::StrContains(weight.parts[0].name, ".pooler."))
      weight.parameter.set_requires_grad(false);
  }
  // Several calls before one backward: one reduction for all of them. Cached calls have a backward
  // each.
  const bool once = o.calls > 1 && !o.cached;
  for (sherd::Module* layer : model.layers()) {
    if (o.checkpoint) sherd::Checkpoint(*layer);
    sherd::FullyShard(*layer, mesh, {.reshard_after_forward = o.reshard, .reduce_once = once});
  }
  sherd::FullyShard(model, mesh, {.reduce_once = once});
  sherd::Initialize(model, mesh.device(), o.seed);
}

// Tokens of the texts of some pairs.
int64_t TokensOf(const Data& data, std::span<const int64_t> which) {
  size_t tokens = 0;
  for (const int64_t i : which) {
    const Pair& pair = data.set.pairs[static_cast<size_t>(i)];
    tokens += data.tokens[static_cast<size_t>(pair.query)].size() +
              data.tokens[static_cast<size_t>(pair.document)].size();
    for (const int64_t text : pair.negatives)
      tokens += data.tokens[static_cast<size_t>(text)].size();
  }
  return static_cast<int64_t>(tokens);
}

// What a state says of the data and the encoder it was trained with, beside its weights.
std::string TrainedWith(const Encoder& encoder, const Data& pairs) {
  return absl::StrFormat("%016x, pooling %d of token %d", FingerprintOf(pairs),
                         static_cast<int>(encoder.head().pooling), encoder.chosen_token);
}

class Trainer {
 public:
  Trainer(const Options& options, const Encoder& encoder, sherd::World& world, const Data& pairs,
          const Data& held_out, const llm::TrainingHooks& hooks);

  // Takes up the state that the hooks name, or the weights of --init.
  absl::Status Begin();
  absl::Status Run();
  // Writes the trained encoder where the options ask for it.
  absl::Status Export();
  TrainingResult Finish();

 private:
  // The pairs of the next step, over all ranks. An epoch's last ones, fewer than a batch, are left
  // out: they would be easier to tell apart.
  std::vector<int64_t> NextWindow();
  // The embeddings of a batch's rows.
  Variable Embed(const Batch& batch, sherd::Recording& on);
  sherd::StepResult Step(sherd::Window<Batch>& window);
  std::optional<HeldOut> MeasureAfter(int64_t step);
  // Tells the hooks of a step; returns whether the run ends behind it.
  absl::StatusOr<bool> Report(const sherd::StepResult& step, double step_seconds,
                              double run_seconds);
  sherd::TrainingState StateAfter(int64_t step);

  const Options& options_;
  const Encoder& encoder_;
  sherd::World& world_;
  const Data& pairs_;
  const Data& held_out_;
  const llm::TrainingHooks& hooks_;
  const sherd::Device& device_;
  const sherd::Schedule schedule_;
  const data::Order order_;
  data::Cursor at_;
  const std::unique_ptr<llm::TextModel> model_;
  std::optional<sherd::AdamW> optimizer_;
  llm::RunStates states_;
  int64_t steps_ = 0;        // made
  int64_t tokens_ = 0;       // trained on
  int64_t step_tokens_ = 0;  // of the newest step, over all ranks
  sherd::Tape tape_;
  TrainingResult result_;
};

Trainer::Trainer(const Options& o, const Encoder& encoder, sherd::World& world, const Data& pairs,
                 const Data& held_out, const llm::TrainingHooks& hooks)
    : options_(o),
      encoder_(encoder),
      world_(world),
      pairs_(pairs),
      held_out_(held_out),
      hooks_(hooks),
      device_(world.device()),
      schedule_(sherd::CosineSchedule(
          {.highest = o.lr, .lowest = o.min_lr, .steps = o.steps, .warmup = o.warmup})),
      order_(pairs.set.size(), o.seed),
      model_(llm::MakeModel(encoder.config, device_)),
      states_(o.out, world, {.steps = o.steps, .save_every = o.save_every, .keep = o.keep}) {
  ShardModel(*model_, world.mesh(), o);
  // After sharding: an optimizer holds the pieces this rank owns.
  optimizer_.emplace(model_->parameters(), sherd::AdamWOptions{.weight_decay = o.weight_decay});
  result_.parameters = model_->size();
}

absl::Status Trainer::Begin() {
  if (hooks_.state.empty()) {
    if (!options_.init.empty()) {
      const auto loaded =
          llm::LoadWeights(options_.init, *model_, world_.group(), {.new_head = true});
      if (!loaded.ok()) return loaded.status();
    }
    result_.before = Measure(*model_, encoder_, held_out_, world_, RankingOf(options_));
    return absl::OkStatus();
  }
  sherd::TrainingState state{.model = model_.get(), .optimizer = &*optimizer_};
  const auto loaded = sherd::LoadState(hooks_.state, state, world_.group());
  if (!loaded.ok()) return loaded.status();
  const absl::StatusOr<data::Cursor> at = order_.Restore(state.entries["order"]);
  if (!at.ok()) {
    return absl::Status(at.status().code(), absl::StrCat("state ", hooks_.state, ": ",
                                                         std::string(at.status().message())));
  }
  if (state.entries[kTrainedWith] != TrainedWith(encoder_, pairs_)) {
    return absl::FailedPreconditionError(absl::StrCat(
        "state ", hooks_.state, " is of other pairs than ", options_.pairs, ", or of other tokens ",
        "or another pooling of them: --pairs, --init, --vocab, --seq and --pooling stay as they ",
        "were"));
  }
  at_ = *at;
  steps_ = state.step;
  tokens_ = hooks_.last.tokens;
  return absl::OkStatus();
}

std::vector<int64_t> Trainer::NextWindow() {
  std::vector<int64_t> window;
  do {
    window = order_.Take(at_, options_.batch);
  } while (static_cast<int64_t>(window.size()) < options_.batch);
  return window;
}

Variable Trainer::Embed(const Batch& batch, sherd::Recording& on) {
  const auto encode = [this, &batch](int64_t call) {
    return (*model_)(
        InputOf(encoder_, pairs_.tokens, batch.texts[static_cast<size_t>(call)], device_));
  };
  if (options_.cached) {
    sherd::CachedStep cached(*model_);
    return cached.Embed(batch.samples,
                        [encode](int64_t call) { return std::vector{encode(call)}; })[0];
  }
  // Every layer runs as often before the one backward.
  std::vector<Variable> parts;
  for (int64_t call = 0; call < batch.calls(); ++call) {
    on.SetSamples(batch.samples[static_cast<size_t>(call)]);
    parts.push_back(encode(call));
  }
  return sherd::Concat(parts, 0);
}

sherd::StepResult Trainer::Step(sherd::Window<Batch>& window) {
  for (const Batch& batch : window) {
    sherd::Recording on(tape_, {.seed = options_.seed, .step = window.step()});
    const Variable rows = Embed(batch, on);
    const auto take = [&](const sherd::Tensor& which) {
      return sherd::GatherRows(rows, Variable(which));
    };
    const bool negatives = pairs_.set.most_negatives() > 0;
    window.Backward(
        sherd::RankingLoss({.queries = take(batch.queries),
                            .documents = take(batch.documents),
                            .negatives = negatives ? take(batch.negatives) : Variable()},
                           world_.mesh(), RankingOf(options_), batch.ids));
  }
  return window.Finish(*optimizer_, schedule_,
                       {.clip = options_.clip, .non_finite = sherd::NonFinite::kSkip});
}

std::optional<HeldOut> Trainer::MeasureAfter(int64_t step) {
  const bool last = step == options_.steps;
  if (!last && (options_.eval_every == 0 || step % options_.eval_every != 0)) return std::nullopt;
  return Measure(*model_, encoder_, held_out_, world_, RankingOf(options_));
}

sherd::TrainingState Trainer::StateAfter(int64_t step) {
  const auto& sizes = std::get<llm::BertConfig>(encoder_.config.sizes);
  return {.model = model_.get(),
          .optimizer = &*optimizer_,
          .step = step,
          .entries = {{"order", order_.Save(at_)},
                      {kTrainedWith, TrainedWith(encoder_, pairs_)},
                      {llm::kConfigEntry, ConfigText(encoder_.config, sizes.dtype)}}};
}

absl::StatusOr<bool> Trainer::Report(const sherd::StepResult& step, double step_seconds,
                                     double run_seconds) {
  const std::optional<HeldOut> held_out = MeasureAfter(step.step);
  const llm::Together all =
      llm::TellAll(world_.group(), {.peak_bytes = device_.allocator().stats().total.peak_bytes,
                                    .stop = hooks_.stop_asked && hooks_.stop_asked(),
                                    .written = states_.written()});
  llm::StepRecord record = {.step = step.step,
                            .loss = step.losses[0],
                            .gradient_norm = step.grad_norm,
                            .learning_rate = step.learning_rate,
                            .samples = step.samples,
                            .micro_batches = step.micro_batches,
                            .tokens = tokens_,
                            .tokens_per_second = static_cast<double>(step_tokens_) / step_seconds,
                            .peak_bytes = std::max(all.peak_bytes, hooks_.last.peak_bytes),
                            .seconds = hooks_.last.seconds + run_seconds};
  if (held_out) {
    result_.after = *held_out;
    record.validation_loss = held_out->loss;
    record.measures = held_out->retrieval.Measures();
  }
  absl::Status told = hooks_.on_step ? hooks_.on_step(record) : absl::OkStatus();
  if (!told.ok()) {
    world_.group().Abort(told);
    return told;
  }
  return states_.After(step.step, all, [&] { return StateAfter(step.step); });
}

absl::Status Trainer::Run() {
  sherd::Accumulation accumulation(*model_, {.losses = {{.name = "ranking", .collective = true}}});
  accumulation.set_steps(steps_);
  const auto loader = [&]() -> std::optional<Batch> {
    const std::vector<int64_t> window = NextWindow();
    step_tokens_ = TokensOf(pairs_, window);
    return MakeBatch(pairs_.set, pairs_.tokens, PartOf(window, world_.rank(), world_.size()),
                     options_.calls, device_);
  };
  const auto count = [](const Batch& batch) {
    return sherd::BatchCount{.items = batch.pairs, .samples = batch.pairs};
  };
  const llm::Stopwatch run;
  llm::Stopwatch step_time;
  while (accumulation.steps() < options_.steps) {
    auto window = accumulation.Next(loader, count);
    if (!window) break;
    const sherd::StepResult step = Step(*window);
    if (absl::Status finite = llm::CheckFinite(step, kWhatHelps); !finite.ok()) return finite;
    tokens_ += step_tokens_;
    const absl::StatusOr<bool> ends = Report(step, step_time.Seconds(), run.Seconds());
    if (!ends.ok()) return ends.status();
    if (*ends) {
      result_.stopped_at = step.step;
      return absl::OkStatus();
    }
    step_time.Restart();
  }
  // Of a run that was complete already.
  if (steps_ == options_.steps) result_.after = *MeasureAfter(steps_);
  return states_.End();
}

absl::Status Trainer::Export() {
  if (options_.export_to.empty() || result_.stopped_at) return absl::OkStatus();
  const auto saved = llm::SavePretrained(options_.export_to, encoder_.config, *model_,
                                         world_.group(), {.dtype = sherd::DType::kF32});
  if (!saved.ok()) return saved.status();
  return sherd::AgreeOn(
      world_.group(), world_.rank() == 0 ? WriteEncoderFiles(options_, encoder_, options_.export_to)
                                         : absl::OkStatus());
}

TrainingResult Trainer::Finish() {
  result_.memory = llm::PeaksByCategory(device_);
  return std::move(result_);
}

}  // namespace

absl::Status CheckRun(const Options& o, const PairSet& pairs, const PairSet& held_out, int ranks) {
  if (o.batch > pairs.size()) {
    return absl::InvalidArgumentError(absl::StrCat("--batch ", o.batch, " is more than the ",
                                                   pairs.size(), " pairs of ", o.pairs));
  }
  // The shortest part has batch / ranks pairs, of two texts at least.
  if (o.batch / ranks * 2 < o.calls) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch ", o.batch, " on ", llm::Counted(ranks, "rank"), " leaves a rank ",
                     llm::Counted(o.batch / ranks, "pair"), ", too few for --calls ", o.calls));
  }
  if (o.symmetric && held_out.size() == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        o.held_out, " has one pair: with --symmetric on there is no query to tell its own from"));
  }
  return absl::OkStatus();
}

uint64_t FingerprintOf(const Data& data) {
  uint64_t hash = 0;
  const auto add = [&hash](auto number) {
    hash = sherd::Mix64(hash, static_cast<uint64_t>(number));
  };
  for (const Pair& pair : data.set.pairs) {
    add(pair.query);
    add(pair.document);
    add(pair.negatives.size());
    for (const int64_t text : pair.negatives) add(text);
  }
  for (const std::vector<int64_t>& text : data.tokens) {
    add(text.size());
    for (const int64_t token : text) add(token);
  }
  return hash;
}

absl::StatusOr<TrainingResult> Train(const Options& options, const Encoder& encoder,
                                     sherd::World& world, const Data& pairs, const Data& held_out,
                                     const llm::TrainingHooks& hooks) {
  Trainer trainer(options, encoder, world, pairs, held_out, hooks);
  if (absl::Status status = trainer.Begin(); !status.ok()) return status;
  if (absl::Status status = trainer.Run(); !status.ok()) return status;
  if (absl::Status status = trainer.Export(); !status.ok()) return status;
  return trainer.Finish();
}

}  // namespace contrastive
