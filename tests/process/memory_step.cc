// The memory of one rank's training step, against a sum computed beforehand.
//
// Prints every term, then "PASS what" or "FAIL what: why" for two checks: the allocator's counted
// peak is at most the sum, and the process's high-water mark grew by the count within 10 %. Run
// under mpirun -np 2.

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "llm/model.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/comm/gloo_group.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/window.h"

namespace {

using namespace sherd;  // NOLINT(google-build-using-namespace): a program, not a library

constexpr int64_t kRows = 4;
constexpr int64_t kTokens = 128;
constexpr int64_t kSteps = 3;

struct Batch {
  Tensor tokens;
  Tensor labels;
};

struct Term {
  const char* name;
  int64_t bytes;
};

std::string Line(const Term& term) {
  return absl::StrFormat("  %-38s %12d\n", term.name, term.bytes);
}

int64_t HighWaterBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// f32 elements that live at once at the worst moment of a step, by the shapes of the ops in order.
int64_t ActivationElems(const llm::LlamaConfig& c) {
  const int64_t n = kRows * kTokens;
  const int64_t kv = c.kv_heads * c.head_size();
  // Kept from the forward: the input of each block and the last one's output; a checkpoint keeps no
  // more.
  const int64_t kept = (c.layers + 1) * n * c.dim;
  // The caller's logits, which live until its statement ends.
  const int64_t logits = n * c.vocabulary;
  // At the loss: the normed output, its inverse norm, log-sum-exps, the gradient of the logits and
  // of the normed output.
  const int64_t at_loss = 2 * n * c.dim + n * c.vocabulary + 2 * n;
  // In a block's backward, everything its recompute saved: two normed inputs, the fused projection,
  // rotated queries and keys, mixed values and log-sum-exps, the projection back and the sum, gate
  // and up, their product, the projection down and the result, two inverse norms.
  const int64_t saved = 2 * n * c.dim + n * (c.dim + 2 * kv) + n * (c.dim + kv) +
                        n * (c.dim + c.heads) + 2 * n * c.dim + 3 * n * c.ffn + 2 * n * c.dim +
                        2 * n;
  // And gradients on their way: of the residual stream, and of gate, up and their product.
  const int64_t grads = 2 * n * c.dim + 3 * n * c.ffn;
  return kept + logits + std::max(at_loss, saved + grads);
}

std::vector<Term> Terms(const llm::LlamaConfig& config, const llm::Llama& model, int world_size) {
  const std::vector<Unit*> units = UnitsOf(model);
  const Layout& root = units[0]->layout();
  std::vector<int64_t> full;
  std::vector<int64_t> gradients;
  int64_t shards = 0;
  for (const Unit* unit : units) {
    shards += unit->layout().shard_bytes();
    if (unit == units[0]) continue;
    full.push_back(unit->layout().full_bytes());
    gradients.push_back(unit->layout().gradient_bytes());
  }
  std::sort(full.rbegin(), full.rend());
  std::sort(gradients.rbegin(), gradients.rend());
  const int64_t pieces = 2 * GlooOptions{}.piece_bytes * (world_size - 1);
  const int64_t tables = kTokens * config.head_size() * SizeOf(DType::kF32);
  const int64_t ids = 2 * kRows * kTokens * SizeOf(DType::kI64);
  return {{"parameter shards", shards},
          {"gradient shards", shards},
          {"optimizer state (two moments)", 2 * shards},
          {"root unit, gathered", root.full_bytes()},
          {"two largest other units, gathered", full[0] + full[1]},
          {"gradients of the root", root.gradient_bytes()},
          {"gradients of the two largest others", gradients[0] + gradients[1]},
          {"staging of one reduction", pieces},
          {"activations", ActivationElems(config) * SizeOf(DType::kF32)},
          {"rope tables, tokens and labels", tables + ids},
          // What attention and matmul ask for; bounded by their contracts, small beside the rest.
          {"kernel workspace", int64_t{2} << 20}};
}

void TrainSteps(World& world, llm::Llama& model) {
  const Device& device = world.device();
  AdamW optimizer(model.parameters(), {});
  const CausalLmLoss loss;
  Accumulation accumulation(model, {.micro_batches = 1});
  Tape tape;
  int64_t made = 0;
  auto loader = [&]() -> std::optional<Batch> {
    if (made == kSteps) return std::nullopt;
    std::vector<int64_t> ids(static_cast<size_t>(kRows * kTokens));
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int64_t>(i * 37 + static_cast<size_t>(made)) % model.config().vocabulary;
    }
    ++made;
    const Shape shape = {kRows, kTokens};
    return Batch{Tensor::FromHost<int64_t>(device, ids, shape),
                 Tensor::FromHost<int64_t>(device, ids, shape)};
  };
  while (auto window = accumulation.Next(loader, loss)) {
    for (const Batch& batch : *window) {
      const Recording on(tape);
      window->Backward(loss(model(batch.tokens), batch.labels));
    }
    window->Finish(optimizer, 1e-3, {.clip = 1.0});
  }
}

int Run() {
  absl::StatusOr<World> world = World::FromEnvironment({.threads = 1});
  if (!world.ok()) {
    std::printf("FAIL memory of a step: %s\n", std::string(world.status().message()).c_str());
    return 1;
  }
  const Device& device = world->device();
  const int64_t before = HighWaterBytes();
  llm::LlamaConfig config;
  config.dim = 512;
  config.layers = 8;
  config.heads = 8;
  config.kv_heads = 4;
  config.ffn = 1376;
  config.vocabulary = 8192;
  config.positions = kTokens;
  llm::Llama model(config, device);
  for (llm::Block& block : model.blocks()) {
    FullyShard(Checkpoint(block), world->mesh(), {.reshard_after_forward = true});
  }
  FullyShard(model, world->mesh());
  Initialize(model, device, 1);
  const std::vector<Term> terms = Terms(config, model, world->size());
  TrainSteps(*world, model);
  const MemoryStats stats = device.allocator().stats();
  const int64_t grown = HighWaterBytes() - before;

  std::string text;
  int64_t sum = 0;
  for (const Term& term : terms) {
    sum += term.bytes;
    text += Line(term);
  }
  const int64_t peak = stats.total.peak_bytes;
  for (const Term& total : {Term{"sum, computed beforehand", sum}, Term{"counted peak", peak},
                            Term{"growth of the high-water mark", grown}}) {
    text += Line(total);
  }
  const double ratio = static_cast<double>(grown) / static_cast<double>(peak);
  const bool below = peak <= sum;
  const bool near = ratio > 0.9 && ratio < 1.1;
  if (world->rank() == 0) {
    std::printf("%s%s", text.c_str(), stats.ToString().c_str());
    std::printf(below ? "PASS counted peak is at most the sum\n"
                      : "FAIL counted peak is at most the sum: see the figures above\n");
    std::printf(near ? "PASS the process grew by the count within 10 %% (%.3f)\n"
                     : "FAIL the process grew by the count within 10 %%: by %.3f of it\n",
                ratio);
  }
  return below && near ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return Run();
  } catch (const std::exception& error) {
    std::printf("FAIL memory of a step: %s\n", error.what());
    return 1;
  }
}
