#include "preference/training.h"

#include <array>
#include <optional>
#include <utility>

#include "data/turns.h"
#include "llm/model.h"
#include "preference/loss.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/evaluation.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/window.h"

namespace preference {
namespace {

llm::LlamaConfig ConfigOf(const Options& o) {
  return {.dim = o.dim,
          .layers = o.layers,
          .heads = o.heads,
          .kv_heads = o.heads,
          .ffn = 3 * o.dim,
          .positions = o.seq,
          .dtype = o.f64 ? sherd::DType::kF64 : sherd::DType::kF32};
}

void ShardModel(llm::Llama& model, const sherd::Mesh& mesh, const Options& o) {
  for (llm::Block& block : model.blocks()) {
    if (o.checkpoint) sherd::Checkpoint(block);
    sherd::FullyShard(block, mesh);
  }
  sherd::FullyShard(model, mesh);
  sherd::Initialize(model, mesh.device(), o.seed);
}

// This rank's micro-batches, step by step; nothing where a step ends.
class Loader {
 public:
  Loader(std::span<const Pair> pairs, const Options& o, int64_t steps, const sherd::World& world)
      : pairs_(pairs),
        device_(world.device()),
        turns_(
            data::Order(static_cast<int64_t>(pairs.size()), o.seed), {}, o.batch,
            [rows = RowsOf(o, world.size())](std::span<const int64_t> window) {
              return data::CutMicroBatches(static_cast<int64_t>(window.size()), rows);
            },
            world.rank(), world.size()),
        steps_(steps) {}

  std::optional<Batch> operator()() {
    if (step_ == steps_) return std::nullopt;
    if (const std::optional<std::vector<int64_t>> which = turns_()) {
      return MakeBatch(pairs_, *which, device_);
    }
    ++step_;
    return std::nullopt;
  }

 private:
  static int64_t RowsOf(const Options& o, int ranks) {
    const int64_t parts = o.micro_batches * ranks;
    return (o.batch + parts - 1) / parts;
  }

  const std::span<const Pair> pairs_;
  const sherd::Device device_;
  data::Turns turns_;
  const int64_t steps_;
  int64_t step_ = 0;
};

// Two forwards of every layer.
Preferences PreferencesOf(llm::Llama& model, const Batch& batch) {
  return {SequenceLogProbs(model(batch.chosen.tokens), batch.chosen.labels),
          SequenceLogProbs(model(batch.rejected.tokens), batch.rejected.labels)};
}

class Trainer {
 public:
  Trainer(const Options& options, sherd::World& world)
      : options_(options),
        world_(world),
        policy_(ConfigOf(options), world.device()),
        reference_(ConfigOf(options), world.device()) {
    ShardModel(policy_, world.mesh(), options);
    ShardModel(reference_, world.mesh(), options);
    for (const sherd::Parameter& p : reference_.parameters()) p.set_requires_grad(false);
  }

  // The first part: the policy learns what chosen answers look like.
  void LearnAnswers(std::span<const Pair> pairs);
  // The reference becomes what the policy is now.
  void KeepReference();
  void LearnPreferences(std::span<const Pair> pairs, std::span<const Pair> held_out,
                        const std::function<void(const Record&)>& on_record);

 private:
  // Sums of margins and of pairs that are preferred rightly.
  struct Tally {
    double right = 0.0;
    double margin = 0.0;
    double pairs = 0.0;
    void Add(const std::vector<double>& margins) {
      for (double m : margins) right += m > 0.0 ? 1.0 : m == 0.0 ? 0.5 : 0.0;
      for (double m : margins) margin += m;
      pairs += static_cast<double>(margins.size());
    }
  };
  // Over all ranks: accuracy and mean margin. COLLECTIVE.
  std::pair<double, double> Agree(const Tally& tally);
  Measure MeasureOn(std::span<const Pair> pairs);

  const Options& options_;
  sherd::World& world_;
  llm::Llama policy_;
  llm::Llama reference_;
  sherd::Tape tape_;
};

void Trainer::LearnAnswers(std::span<const Pair> pairs) {
  if (options_.warmup_steps == 0) return;
  sherd::AdamW optimizer(policy_.parameters());
  const sherd::CausalLmLoss loss({.ignore_index = kIgnored});
  const auto count = [&](const Batch& batch) { return loss.Count(batch.chosen.labels); };
  const sherd::Schedule schedule =
      sherd::CosineSchedule({.highest = options_.warmup_lr,
                             .lowest = options_.warmup_lr / 10,
                             .steps = options_.warmup_steps,
                             .warmup = std::min<int64_t>(20, options_.warmup_steps)});
  sherd::Accumulation accumulation(policy_, {.micro_batches = options_.micro_batches + 1});
  Loader loader(pairs, options_, options_.warmup_steps, world_);
  while (auto window = accumulation.Next(loader, count)) {
    for (const Batch& batch : *window) {
      const sherd::Recording on(tape_);
      window->Backward(loss(policy_(batch.chosen.tokens), batch.chosen.labels));
    }
    window->Finish(optimizer, schedule, {.clip = options_.clip});
  }
}

void Trainer::KeepReference() {
  const std::vector<sherd::Parameter> from = policy_.parameters();
  const std::vector<sherd::Parameter> to = reference_.parameters();
  for (size_t i = 0; i < from.size(); ++i) {
    sherd::kernels::Copy(from[i].local(), to[i].MutableLocal());
  }
}

std::pair<double, double> Trainer::Agree(const Tally& tally) {
  std::array<double, 3> sums = {tally.right, tally.margin, tally.pairs};
  world_.group().AllReduce(sums.data(), sums.size(), sherd::DType::kF64, {.op = "accuracy"});
  return {sums[0] / sums[2], sums[1] / sums[2]};
}

Measure Trainer::MeasureOn(std::span<const Pair> pairs) {
  const auto size = static_cast<int64_t>(pairs.size());
  const std::vector<std::vector<int64_t>> mine =
      data::MicroBatchesOf(data::Numbers(0, size), data::CutMicroBatches(size, options_.batch),
                           world_.rank(), world_.size());
  auto next = mine.begin();
  const auto loader = [&]() -> std::optional<Batch> {
    if (next == mine.end()) return std::nullopt;
    return MakeBatch(pairs, *next++, world_.device());
  };
  Tally tally;
  const auto forward = [&](const Batch& batch) {
    const Preferences reference = PreferencesOf(reference_, batch);
    const Preferences policy = PreferencesOf(policy_, batch);
    tally.Add(Margins(policy, reference, options_.beta));
    return DpoLoss(policy, reference, options_.beta);
  };
  Measure measure{.loss = sherd::Evaluate(policy_, loader, forward).loss};
  std::tie(measure.accuracy, measure.margin) = Agree(tally);
  return measure;
}

void Trainer::LearnPreferences(std::span<const Pair> pairs, std::span<const Pair> held_out,
                               const std::function<void(const Record&)>& on_record) {
  const Measure before = MeasureOn(held_out);
  on_record({.loss = before.loss, .accuracy = before.accuracy, .held_out = before});
  sherd::AdamW optimizer(policy_.parameters(), {.weight_decay = 0.0});
  const auto count = [](const Batch& batch) { return batch.pairs(); };
  const sherd::Schedule schedule =
      sherd::LinearSchedule({.highest = options_.lr,
                             .lowest = options_.lr / 10,
                             .steps = options_.steps,
                             .warmup = std::min<int64_t>(10, options_.steps)});
  sherd::Accumulation accumulation(policy_, {.micro_batches = options_.micro_batches + 1});
  Loader loader(pairs, options_, options_.steps, world_);
  while (auto window = accumulation.Next(loader, count)) {
    Tally tally;
    for (const Batch& batch : *window) {
      const Preferences reference = PreferencesOf(reference_, batch);  // not recorded
      const sherd::Recording on(tape_);
      const Preferences policy = PreferencesOf(policy_, batch);
      tally.Add(Margins(policy, reference, options_.beta));
      window->Backward(DpoLoss(policy, reference, options_.beta));
    }
    const sherd::StepResult step = window->Finish(optimizer, schedule, {.clip = options_.clip});
    Record record{.step = step.step,
                  .loss = step.loss,
                  .learning_rate = step.learning_rate,
                  .gradient_norm = step.grad_norm};
    std::tie(record.accuracy, record.margin) = Agree(tally);
    if (step.step == options_.steps) record.held_out = MeasureOn(held_out);
    on_record(record);
  }
}

}  // namespace

void Train(const Options& options, sherd::World& world, std::span<const Pair> pairs,
           std::span<const Pair> held_out, const std::function<void(const Record&)>& on_record) {
  Trainer trainer(options, world);
  trainer.LearnAnswers(pairs);
  trainer.KeepReference();
  trainer.LearnPreferences(pairs, held_out, on_record);
}

}  // namespace preference
