// What each checkpoint policy keeps and repeats in the blocks of the example's language model.
//
// Prints the rows of the table in checkpoint/README.md: per block what is kept and computed again,
// and of the step the activations' peak, the host's share and the seconds. f32, one rank,
// unsharded.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "llm/model.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/core/allocator.h"

namespace sherd {
namespace {

constexpr int64_t kBatch = 4;
constexpr int64_t kTokens = 256;
constexpr int64_t kLayers = 6;
constexpr int kSteps = 4;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Measure(const char* name, const std::function<void(llm::Llama&, CheckpointOptions)>& wrap,
             CheckpointOptions options) {
  const Device device = Device::Cpu();
  llm::LlamaConfig config;
  config.dim = 256;
  config.layers = kLayers;
  config.heads = 8;
  config.kv_heads = 4;
  config.ffn = 688;
  config.positions = kTokens;
  llm::Llama model(config, device);
  Initialize(model, device, 1);
  auto stats = std::make_shared<CheckpointStats>();
  options.stats = stats;
  wrap(model, options);
  std::vector<int64_t> ids(static_cast<size_t>(kBatch * kTokens));
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(i * 7919 % 256);
  const Tensor tokens = Tensor::FromHost<int64_t>(device, ids, {kBatch, kTokens});
  const CausalLmLoss loss;
  Tape tape;
  double best = std::numeric_limits<double>::infinity();
  MemoryStats memory;
  for (int step = 0; step < kSteps; ++step) {
    *stats = CheckpointStats{};
    for (const Parameter& p : model.parameters()) p.ClearGrad();
    device.allocator().ResetPeaks();
    const double start = Now();
    {
      const Recording on(tape);
      tape.Backward(loss(model(tokens), tokens).value);
    }
    tape.Reset();
    best = std::min(best, Now() - start);
    memory = device.allocator().stats();
  }
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  const double blocks = kLayers;
  std::printf("| %s | %.1f | %.1f | %.1f | %.2f | %.1f | %.1f | %.3f |\n", name,
              mib(stats->peak_kept_bytes) / blocks, static_cast<double>(stats->kept_ops) / blocks,
              static_cast<double>(stats->repeated_ops) / blocks,
              stats->repeated_flops / blocks / 1e9,
              mib(memory[MemoryCategory::kActivation].peak_bytes),
              mib(memory[MemoryCategory::kOffloaded].peak_bytes), best);
}

int Run() {
  std::printf(
      "| blocks | kept MiB | kept ops | repeated ops | repeated GFLOP | activations MiB | host MiB "
      "| "
      "s a step |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  const auto all = [](llm::Llama& model, const CheckpointOptions& options) {
    CheckpointEvery(model.blocks(), 1, options);
  };
  const auto second = [](llm::Llama& model, const CheckpointOptions& options) {
    CheckpointEvery(model.blocks(), 2, options);
  };
  const auto budget = [](int64_t mib) { return std::make_shared<MemoryBudget>(mib << 20); };
  Measure("not checkpointed", [](llm::Llama&, const CheckpointOptions&) {}, {});
  Measure("`early_stop = false`", all, {.early_stop = false});
  Measure("the default", all, {});
  Measure("`KeepKinds({kAttention})`", all, {.policy = KeepKinds({OpKind::kAttention})});
  Measure("`KeepMatmuls()`", all, {.policy = KeepMatmuls()});
  Measure("`KeepAll()`", all, {.policy = KeepAll()});
  Measure("`MemoryBudget` of 30 MiB", all, {.budget = budget(30)});
  Measure("`MemoryBudget` of 60 MiB", all, {.budget = budget(60)});
  Measure("`MemoryBudget` of 120 MiB", all, {.budget = budget(120)});
  Measure("every second, the default", second, {});
  Measure("`KeepMatmuls()` and `Offload`", all,
          {.policy = KeepMatmuls(), .offload = std::make_shared<Offload>()});
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace sherd

int main() { return sherd::Run(); }
