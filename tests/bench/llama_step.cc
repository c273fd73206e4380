// A Llama-style training step on random tokens, with the fields of the PyTorch script it is
// measured beside.
//
// Run it alone for one rank, or under mpirun or torchrun. Rank 0 prints one JSON line: tokens/s of
// all ranks over the counted steps, peak resident MiB, losses, and the share of the matmul floor:
// the time oneDNN needs for the step's own matrix products alone, on all ranks at once, over the
// time of the step.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
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
#include "sherd/shard/plan.h"
#include "sherd/shard/plan_model.h"
#include "sherd/shard/trace.h"
#include "sherd/shard/window.h"
#include "tests/support/counting_new.h"

// Callgrind runs several times faster before it is told to look.
#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_START_INSTRUMENTATION
#define CALLGRIND_STOP_INSTRUMENTATION
#endif

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
  std::string dtype = "f32";  // of the compute; parameters and their sums are f32
  std::string device = "cpu";
  std::string trace;      // write the last steps' events here; needs the engine
  bool plain = false;     // no FullyShard: the same step with the engine off
  bool plan = false;      // print planned and counted peaks
  bool no_floor = false;  // leave the matmul floor out
  bool memory = false;    // print the allocator's table to stderr
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
  } else if (options.shape == "1.5b") {
    set(2048, 28, 16, 16, 5632, 50304);
  } else {
    std::fprintf(stderr, "llama_step: no shape '%s'; there are tiny, mid, smol and 1.5b\n",
                 options.shape.c_str());
    std::exit(2);
  }
  return c;
}

Options Parse(int argc, char** argv) {
  Options o;
  const std::map<std::string, int64_t*> numbers = {
      {"--seq", &o.seq}, {"--batch", &o.batch}, {"--steps", &o.steps}, {"--warmup", &o.warmup}};
  const std::map<std::string, bool*> switches = {{"--checkpoint", &o.checkpoint},
                                                 {"--memory", &o.memory},
                                                 {"--plain", &o.plain},
                                                 {"--plan", &o.plan},
                                                 {"--no-floor", &o.no_floor}};
  const std::map<std::string, std::string*> words = {
      {"--shape", &o.shape}, {"--dtype", &o.dtype}, {"--trace", &o.trace}, {"--device", &o.device}};
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool has_value = i + 1 < argc;
    if (const auto on = switches.find(flag); on != switches.end()) {
      *on->second = true;
    } else if (const auto word = words.find(flag); word != words.end() && has_value) {
      *word->second = argv[++i];
    } else if (flag == "--threads" && has_value) {
      o.threads = std::atoi(argv[++i]);
    } else if (auto it = numbers.find(flag); it != numbers.end() && has_value) {
      *it->second = std::atoll(argv[++i]);
    } else {
      std::fprintf(stderr, "llama_step: unknown flag '%s'\n", flag.c_str());
      std::exit(2);
    }
  }
  if ((o.dtype != "f32" && o.dtype != "bf16") || (o.device != "cpu" && o.device != "cuda") ||
      (o.plain && (o.dtype != "f32" || o.plan)) || (o.plain && !o.trace.empty())) {
    std::fprintf(stderr,
                 "llama_step: --dtype is f32 or bf16, --device cpu or cuda; with --plain f32, no "
                 "plan, no trace\n");
    std::exit(2);
  }
  return o;
}

// Returns when a device that works on its own has done what it was asked.
void Finish(const Device& device) {
  if (device.backend() != nullptr) device.backend()->queue().Synchronize();
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
      Finish(device);
      const double start = Now();
      for (int forward = 0; forward < (p.recomputed ? 2 : 1); ++forward)
        kernels::Matmul(x, false, w, true, y);
      kernels::Matmul(y, true, x, false, gw);
      kernels::Matmul(y, false, w, false, gx);
      Finish(device);
      best = std::min(best, Now() - start);
    }
    total += best * static_cast<double>(p.count);
  }
  return total;
}

// The model, sharded unless the engine is off, and what trains it on random tokens.
class Trainer {
 public:
  Trainer(const Options& options, World& world)
      : options_(options),
        world_(world),
        model_(ConfigOf(options), world.device()),
        random_(1 + static_cast<uint64_t>(world.rank())) {
    for (llm::Block& block : model_.blocks()) {
      if (options.checkpoint) Checkpoint(block);
      if (!options.plain) FullyShard(block, world.mesh(), Sharding());
    }
    if (!options.plain) FullyShard(model_, world.mesh(), Sharding());
    Initialize(model_, world.device(), 0);
    optimizer_.emplace(model_.parameters(), AdamWOptions{.weight_decay = 0.01});
    accumulation_.emplace(model_, AccumulationOptions{.micro_batches = 1});
    if (!options.trace.empty()) ContextOf(model_)->SetEvents(&events_);
  }

  llm::Llama& model() { return model_; }

  double Step() {
    auto window = accumulation_->Next([this] { return std::optional<Batch>(Next()); }, loss_);
    for (const Batch& batch : *window) {
      const Recording on(tape_);
      window->Backward(loss_(model_(batch.tokens), batch.labels));
    }
    return window->Finish(*optimizer_, 3e-4).loss;
  }

  // The events of the latest step, in the file of this rank.
  void WriteTrace() {
    const absl::Status written =
        WriteChromeTrace(events_, options_.trace + "." + std::to_string(world_.rank()));
    ThrowIfError(written);
    world_.group().Barrier();
    if (world_.rank() != 0) return;
    std::vector<std::string> parts;
    for (int rank = 0; rank < world_.size(); ++rank) {
      parts.push_back(options_.trace + "." + std::to_string(rank));
    }
    ThrowIfError(MergeChromeTraces(parts, options_.trace));
  }

  // Counted peaks of the latest steps beside those of a plan, by category and in bytes. What
  // blocks keep for their backward is left out.
  void PrintPlan() {
    std::vector<const Module*> blocks;
    for (const llm::Block& block : model_.blocks()) blocks.push_back(&block);
    const Plan plan =
        MakePlan(PlanModelOf(model_, blocks, {.recompute = options_.checkpoint}),
                 {.shard_ranks = world_.size(), .tokens = options_.batch * options_.seq});
    const MemoryStats counted = world_.device().allocator().stats();
    for (MemoryCategory category :
         {MemoryCategory::kParameterShard, MemoryCategory::kUnsharded, MemoryCategory::kGradient,
          MemoryCategory::kGradientShard, MemoryCategory::kOptimizer}) {
      const int64_t planned = plan.peak_bytes(category);
      const int64_t held = counted[category].peak_bytes;
      std::printf("%-20s planned %12lld counted %12lld %+.2f %%\n",
                  std::string(NameOf(category)).c_str(), static_cast<long long>(planned),
                  static_cast<long long>(held),
                  100.0 * static_cast<double>(held - planned) /
                      static_cast<double>(std::max<int64_t>(planned, 1)));
    }
  }

 private:
  FullyShardOptions Sharding() const {
    FullyShardOptions sharding;
    if (options_.dtype == "bf16") sharding.precision = kBf16;
    return sharding;
  }

  Batch Next() {
    const auto vocabulary = static_cast<uint64_t>(model_.config().vocabulary);
    tokens_.clear();
    labels_.clear();
    for (int64_t b = 0; b < options_.batch; ++b) {
      auto token = static_cast<int64_t>(random_() % vocabulary);
      for (int64_t t = 0; t < options_.seq; ++t) {
        tokens_.push_back(token);
        token = static_cast<int64_t>(random_() % vocabulary);
        labels_.push_back(token);
      }
    }
    const Shape shape = {options_.batch, options_.seq};
    return {Tensor::FromHost<int64_t>(world_.device(), tokens_, shape),
            Tensor::FromHost<int64_t>(world_.device(), labels_, shape)};
  }

  const Options& options_;
  World& world_;
  EventLog events_{{.rank = world_.rank(), .capacity = 4096}};
  llm::Llama model_;
  std::optional<AdamW> optimizer_;
  std::optional<Accumulation> accumulation_;
  const CausalLmLoss loss_;
  Tape tape_;
  std::mt19937_64 random_;
  std::vector<int64_t> tokens_;
  std::vector<int64_t> labels_;
};

// What the counted steps took.
struct Figures {
  double seconds = 0.0;
  double first_loss = 0.0;
  double last_loss = 0.0;
  int64_t start_rss_kib = 0;
  double allocations = 0.0;  // of the heap, a step
};

int64_t PeakRssKib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

void Print(const Options& options, World& world, llm::Llama& model, const Figures& figures) {
  const MemoryStats memory = world.device().allocator().stats();
  const int64_t peak_kib = PeakRssKib();
  const double floor_seconds =
      options.no_floor ? 0.0 : FloorSeconds(model.config(), options, world.device());
  if (world.rank() != 0) return;
  const double tokens =
      static_cast<double>(options.steps * options.batch * options.seq * world.size());
  const double tokens_per_s = tokens / figures.seconds;
  const int64_t parameters = model.size();
  std::printf(
      "{\"library\": \"sherd\", \"world\": %d, \"shape\": \"%s\", \"params\": %lld, "
      "\"device\": \"%s\", \"seq\": %lld, \"batch\": %lld, \"dtype\": \"%s\", \"checkpoint\": %s, "
      "\"threads\": %d, \"tokens_per_s\": %.1f, \"gflops\": %.1f, \"peak_rss_mib\": %lld, "
      "\"grown_rss_mib\": %lld, "
      "\"counted_peak_mib\": %.0f, \"first_loss\": %.6f, \"last_loss\": %.6f, "
      "\"matmul_floor_share\": %.3f, \"heap_allocations_a_step\": %.1f}\n",
      world.size(), options.shape.c_str(), static_cast<long long>(parameters),
      world.device().id().ToString().c_str(), static_cast<long long>(options.seq),
      static_cast<long long>(options.batch), options.dtype.c_str(),
      options.checkpoint ? "true" : "false", options.threads, tokens_per_s,
      6e-9 * static_cast<double>(parameters) * tokens_per_s,
      static_cast<long long>(peak_kib / 1024),
      static_cast<long long>((peak_kib - figures.start_rss_kib) / 1024),
      static_cast<double>(memory.total.peak_bytes) / 1048576.0, figures.first_loss,
      figures.last_loss, floor_seconds * static_cast<double>(options.steps) / figures.seconds,
      figures.allocations);
  if (options.memory) std::fprintf(stderr, "%s", memory.ToString().c_str());
}

int Run(const Options& options) {
  absl::StatusOr<World> world = World::FromEnvironment(
      {.device = options.device == "cuda" ? DeviceKind::kCuda : DeviceKind::kCpu,
       .threads = options.threads});
  if (!world.ok()) {
    std::fprintf(stderr, "llama_step: %s\n", std::string(world.status().message()).c_str());
    return 1;
  }
  Figures figures;
  figures.start_rss_kib = PeakRssKib();
  Trainer trainer(options, *world);
  for (int64_t step = 0; step < options.warmup; ++step) {
    const double loss = trainer.Step();
    if (step == 0) figures.first_loss = loss;
  }
  world->device().allocator().ResetPeaks();
  Finish(world->device());
  world->group().Barrier();
  const int64_t allocations = testing::HeapAllocations();
  CALLGRIND_START_INSTRUMENTATION;
  const double start = Now();
  for (int64_t step = 0; step < options.steps; ++step) figures.last_loss = trainer.Step();
  CALLGRIND_STOP_INSTRUMENTATION;
  figures.allocations = static_cast<double>(testing::HeapAllocations() - allocations) /
                        static_cast<double>(options.steps);
  Finish(world->device());
  world->group().Barrier();
  figures.seconds = Now() - start;
  if (options.plan && world->rank() == 0) trainer.PrintPlan();
  if (!options.trace.empty()) trainer.WriteTrace();
  Print(options, *world, trainer.model(), figures);
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
