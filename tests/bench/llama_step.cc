// A Llama-style training step on random tokens, with the fields of the PyTorch script it is
// measured beside.
//
// Run it alone for one rank, or under mpirun or torchrun. Rank 0 prints one JSON line: tokens/s of
// all ranks over the counted steps, peak resident MiB, losses, and the share of the matmul floor:
// the time oneDNN needs for the step's own matrix products alone, on all ranks at once, over the
// time of the step.

#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "llm/model.h"
#include "sherd/autograd/loss/causal_lm.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/matmul.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/window.h"

namespace {

using namespace sherd;  // NOLINT(google-build-using-namespace): a program, not a library

struct Options {
  std::string shape = "tiny";
  int64_t seq = 256;
  int64_t batch = 8;
  int64_t steps = 10;
  int64_t warmup = 3;
  int threads = 1;
  bool checkpoint = false;
  bool memory = false;  // print the allocator's table to stderr
};

struct Batch {
  Tensor tokens;
  Tensor labels;
};

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

llm::LlamaConfig ConfigOf(const Options& options) {
  llm::LlamaConfig c;
  c.tied = true;
  c.positions = options.seq;
  auto set = [&](int64_t dim, int64_t layers, int64_t heads, int64_t kv, int64_t ffn,
                 int64_t vocabulary) {
    c.dim = dim;
    c.layers = layers;
    c.heads = heads;
    c.kv_heads = kv;
    c.ffn = ffn;
    c.vocabulary = vocabulary;
  };
  if (options.shape == "tiny") {
    set(256, 4, 8, 4, 688, 256);
  } else if (options.shape == "mid") {
    set(512, 8, 8, 4, 1376, 8192);
  } else if (options.shape == "smol") {
    set(576, 30, 9, 3, 1536, 49152);
  } else {
    std::fprintf(stderr, "llama_step: no shape '%s'; there are tiny, mid and smol\n",
                 options.shape.c_str());
    std::exit(2);
  }
  return c;
}

Options Parse(int argc, char** argv) {
  Options o;
  const std::map<std::string, int64_t*> numbers = {
      {"--seq", &o.seq}, {"--batch", &o.batch}, {"--steps", &o.steps}, {"--warmup", &o.warmup}};
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool has_value = i + 1 < argc;
    if (flag == "--checkpoint") {
      o.checkpoint = true;
    } else if (flag == "--memory") {
      o.memory = true;
    } else if (flag == "--shape" && has_value) {
      o.shape = argv[++i];
    } else if (flag == "--threads" && has_value) {
      o.threads = std::atoi(argv[++i]);
    } else if (auto it = numbers.find(flag); it != numbers.end() && has_value) {
      *it->second = std::atoll(argv[++i]);
    } else {
      std::fprintf(stderr, "llama_step: unknown flag '%s'\n", flag.c_str());
      std::exit(2);
    }
  }
  return o;
}

// Seconds of the step's matrix products alone: the forward's (twice for recomputed blocks) and the
// two of each backward, on operands of the model's shapes.
double FloorSeconds(const llm::LlamaConfig& c, const Options& o, const Device& device) {
  const int64_t rows = o.batch * o.seq;
  struct Product {
    int64_t in;
    int64_t out;
    int64_t count;
    bool recomputed;
  };
  const Product products[] = {
      {c.dim, (c.heads + 2 * c.kv_heads) * c.head_size(), c.layers, o.checkpoint},
      {c.heads * c.head_size(), c.dim, c.layers, o.checkpoint},
      {c.dim, 2 * c.ffn, c.layers, o.checkpoint},
      {c.ffn, c.dim, c.layers, o.checkpoint},
      {c.dim, c.vocabulary, 1, false},
  };
  double total = 0.0;
  for (const Product& p : products) {
    const Tensor x = Tensor::Zeros(device, DType::kF32, {rows, p.in});
    const Tensor y = Tensor::Zeros(device, DType::kF32, {rows, p.out});
    const Tensor w = Tensor::Zeros(device, DType::kF32, {p.out, p.in});
    const Tensor gw = Tensor::Zeros(device, DType::kF32, {p.out, p.in});
    const Tensor gx = Tensor::Zeros(device, DType::kF32, {rows, p.in});
    kernels::Fill(x, 0.5);
    kernels::Fill(w, 0.25);
    kernels::Fill(y, 0.125);
    double best = 1e30;
    for (int repeat = 0; repeat < 6; ++repeat) {
      const double start = Now();
      for (int forward = 0; forward < (p.recomputed ? 2 : 1); ++forward)
        kernels::Matmul(x, false, w, true, y);
      kernels::Matmul(y, true, x, false, gw);
      kernels::Matmul(y, false, w, false, gx);
      best = std::min(best, Now() - start);
    }
    total += best * static_cast<double>(p.count);
  }
  return total;
}

int Run(const Options& options) {
  absl::StatusOr<World> world = World::FromEnvironment({.threads = options.threads});
  if (!world.ok()) {
    std::fprintf(stderr, "llama_step: %s\n", std::string(world.status().message()).c_str());
    return 1;
  }
  const llm::LlamaConfig config = ConfigOf(options);
  const Device& device = world->device();
  llm::Llama model(config, device);
  for (llm::Block& block : model.blocks()) {
    if (options.checkpoint) Checkpoint(block);
    FullyShard(block, world->mesh());
  }
  FullyShard(model, world->mesh());
  Initialize(model, device, 0);
  AdamW optimizer(model.parameters(), {.weight_decay = 0.01});
  const CausalLmLoss loss;
  Accumulation accumulation(model, {.micro_batches = 1});
  Tape tape;
  std::mt19937_64 random(1 + static_cast<uint64_t>(world->rank()));
  auto loader = [&]() -> std::optional<Batch> {
    std::vector<int64_t> tokens;
    std::vector<int64_t> labels;
    for (int64_t b = 0; b < options.batch; ++b) {
      int64_t token = static_cast<int64_t>(random() % static_cast<uint64_t>(config.vocabulary));
      for (int64_t t = 0; t < options.seq; ++t) {
        tokens.push_back(token);
        token = static_cast<int64_t>(random() % static_cast<uint64_t>(config.vocabulary));
        labels.push_back(token);
      }
    }
    const Shape shape = {options.batch, options.seq};
    return Batch{Tensor::FromHost<int64_t>(device, tokens, shape),
                 Tensor::FromHost<int64_t>(device, labels, shape)};
  };
  double start = 0.0;
  double first_loss = 0.0;
  double last_loss = 0.0;
  for (int64_t step = 0; step < options.warmup + options.steps; ++step) {
    if (step == options.warmup) {
      world->group().Barrier();
      start = Now();
    }
    auto window = accumulation.Next(loader, loss);
    for (const Batch& batch : *window) {
      const Recording on(tape);
      window->Backward(loss(model(batch.tokens), batch.labels));
    }
    const StepResult r = window->Finish(optimizer, {.learning_rate = 3e-4});
    if (step == 0) first_loss = r.loss;
    last_loss = r.loss;
  }
  world->group().Barrier();
  const double seconds = Now() - start;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const MemoryStats memory = device.allocator().stats();
  const double floor_seconds = FloorSeconds(config, options, device);
  if (world->rank() == 0) {
    const double tokens =
        static_cast<double>(options.steps * options.batch * options.seq * world->size());
    const double tokens_per_s = tokens / seconds;
    const int64_t parameters = model.size();
    std::printf(
        "{\"library\": \"sherd\", \"world\": %d, \"shape\": \"%s\", \"params\": %lld, \"seq\": "
        "%lld, "
        "\"batch\": %lld, \"dtype\": \"f32\", \"checkpoint\": %s, \"threads\": %d, "
        "\"tokens_per_s\": %.1f, "
        "\"gflops\": %.1f, \"peak_rss_mib\": %ld, \"counted_peak_mib\": %.0f, \"first_loss\": "
        "%.6f, "
        "\"last_loss\": %.6f, \"matmul_floor_share\": %.3f}\n",
        world->size(), options.shape.c_str(), static_cast<long long>(parameters),
        static_cast<long long>(options.seq), static_cast<long long>(options.batch),
        options.checkpoint ? "true" : "false", options.threads, tokens_per_s,
        6e-9 * static_cast<double>(parameters) * tokens_per_s, usage.ru_maxrss / 1024,
        static_cast<double>(memory.total.peak_bytes) / 1048576.0, first_loss, last_loss,
        floor_seconds * static_cast<double>(options.steps) / seconds);
    if (options.memory) std::fprintf(stderr, "%s", memory.ToString().c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(Parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "llama_step: %s\n", error.what());
    return 1;
  }
}
