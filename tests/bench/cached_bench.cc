// What a batch larger than memory costs: cached_bench [pairs of a chunk] [chunks] [runs] [ranks].
//
// A BERT encoder of MiniLM-L6's sizes (384 wide, 6 layers, 64 tokens, dropout 0.1, f32, random
// values) and the ranking loss, on ranks that are threads, sharded by block, with and without
// checkpoints. The plain step takes one chunk of pairs; CachedStep takes all chunks. A run times
// plain steps, one cached step, and as many plain steps again; the ratio is the median over the
// runs. Peaks are the allocator's counts on rank 0. Prints the rows of the tables in README.md.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "llm/models/bert.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/core/allocator.h"
#include "sherd/runtime/core/random.h"
#include "sherd/shard/cached_step.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/ranking_loss.h"
#include "tests/support/ranks.h"

namespace sherd {
namespace {

constexpr int64_t kTokens = 64;

struct Sizes {
  int64_t pairs = 4;  // of a chunk, and of a plain step
  int64_t chunks = 32;
  int runs = 3;
  int64_t all() const { return pairs * chunks; }
};

llm::BertConfig MiniLm() {
  llm::BertConfig config;
  config.dim = 384;
  config.layers = 6;
  config.heads = 12;
  config.ffn = 1536;
  config.head = {.kind = llm::Head::kEmbedding, .pooling = llm::Pooling::kMean};
  return config;
}

// The tokens of queries (side 0) or documents (side 1).
Tensor TokensOf(const Device& device, int64_t first, int64_t pairs, int side) {
  std::vector<int64_t> ids;
  for (int64_t i = first * kTokens; i < (first + pairs) * kTokens; ++i) {
    const auto word = Philox4x32(static_cast<uint64_t>(side), static_cast<uint64_t>(i), 1)[0];
    ids.push_back(static_cast<int64_t>(word % 30000));
  }
  return Tensor::FromHost<int64_t>(device, ids, {pairs, kTokens});
}

// A sharded encoder in training on one rank.
class Training {
 public:
  Training(World& world, bool checkpoint, const Sizes& sizes)
      : world_(world), sizes_(sizes), model_(MiniLm()) {
    const FullyShardOptions options{.scale = ScaleBy::kCaller};
    for (Module* block : model_.layers()) {
      if (checkpoint) Checkpoint(*block);
      FullyShard(*block, world.mesh(), options);
    }
    FullyShard(model_, world.mesh(), options);
    Initialize(model_, world.device(), 1);
  }

  // One chunk of the batch, as a step of its own.
  void Plain(int64_t chunk) {
    const Recording on(tape_, {.seed = 1, .step = 1, .samples = SamplesOf(chunk)});
    Learn(Embed(chunk));
  }
  // The whole batch.
  void Cached() {
    std::vector<std::vector<int64_t>> samples;
    for (int64_t chunk = 0; chunk < sizes_.chunks; ++chunk) samples.push_back(SamplesOf(chunk));
    const Recording on(tape_, {.seed = 1, .step = 1});
    Learn(CachedStep(model_).Embed(samples, [this](int64_t chunk) { return Embed(chunk); }));
  }
  int64_t columns() const { return model_.config().dim; }

 private:
  int64_t First(int64_t chunk) const {
    return (world_.rank() * sizes_.chunks + chunk) * sizes_.pairs;
  }
  std::vector<int64_t> SamplesOf(int64_t chunk) const {
    std::vector<int64_t> samples;
    for (int64_t i = 0; i < sizes_.pairs; ++i) samples.push_back(First(chunk) + i);
    return samples;
  }
  std::vector<Variable> Embed(int64_t chunk) {
    std::vector<Variable> sides;
    for (const int side : {0, 1}) {
      sides.push_back(model_(TokensOf(world_.device(), First(chunk), sizes_.pairs, side)));
    }
    return sides;
  }
  void Learn(const std::vector<Variable>& e) {
    tape_.Backward(RankingLoss({e[0], e[1]}, world_.mesh()).value);
    tape_.Reset();
    for (const Parameter& parameter : model_.parameters()) parameter.ClearGrad();
  }

  World& world_;
  const Sizes sizes_;
  llm::Bert model_;
  Tape tape_;
};

// Seconds of `body` on all ranks: by the clock, and of all threads of the program together.
struct Seconds {
  double wall = 0.0, cpu = 0.0;
};

Seconds TimeOf(World& world, const std::function<void()>& body) {
  const auto now = [] {
    timespec cpu{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    const auto wall = std::chrono::steady_clock::now().time_since_epoch();
    return Seconds{std::chrono::duration<double>(wall).count(),
                   static_cast<double>(cpu.tv_sec) + static_cast<double>(cpu.tv_nsec) * 1e-9};
  };
  world.group().Barrier();
  const Seconds begin = now();
  body();
  world.group().Barrier();
  const Seconds end = now();
  return {end.wall - begin.wall, end.cpu - begin.cpu};
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

MemoryStats PeaksOf(World& world, const std::function<void()>& body) {
  CachingAllocator& allocator = world.device().allocator();
  world.group().Barrier();
  allocator.ResetPeaks();
  body();
  return allocator.stats();
}

// What the loss holds at most by itself, of `pairs` on each rank, counted: what it makes of the
// embeddings of all ranks, scores, and the gradients of all of them.
int64_t CountedOfLoss(World& world, int64_t pairs, int64_t columns) {
  const auto leaf = [&](uint64_t seed) {
    std::vector<float> values(static_cast<size_t>(pairs * columns));
    for (size_t i = 0; i < values.size(); ++i) {
      const auto words = Philox4x32(seed, i, 2);
      values[i] = static_cast<float>(Normal(words[0], words[1]));
    }
    return Variable::Leaf(Tensor::FromHost<float>(world.device(), values, {pairs, columns}));
  };
  const Variable queries = leaf(1), documents = leaf(2);
  const MemoryStats stats = PeaksOf(world, [&] {
    Tape tape;
    const Recording on(tape);
    tape.Backward(RankingLoss({queries, documents}, world.mesh()).value);
  });
  return stats[MemoryCategory::kActivation].peak_bytes;
}

// Of one rank, from shapes: one side's embeddings, and the scores of its pairs with all documents.
struct OfLoss {
  OfLoss(int ranks, int64_t pairs, int64_t columns)
      : side(4 * pairs * columns), scores(4 * ranks * pairs * pairs) {}
  int64_t side;
  int64_t scores;
};

// `held`: the embeddings and gradients of how many sides are held while the encoder runs backward.
void PrintMemory(const char* step, const MemoryStats& stats, const OfLoss& of_loss, int held,
                 int64_t counted) {
  std::printf("| %s | %.1f |", step, Mib(stats.total.peak_bytes));
  for (const MemoryCategory category :
       {MemoryCategory::kParameterShard, MemoryCategory::kGradientShard, MemoryCategory::kUnsharded,
        MemoryCategory::kGradient}) {
    std::printf(" %.1f |", Mib(stats[category].peak_bytes));
  }
  const int64_t activations = stats[MemoryCategory::kActivation].peak_bytes;
  std::printf(" %.2f | %.2f | %.2f | %.2f | %.2f |\n", Mib(activations), Mib(held * of_loss.side),
              Mib(activations - held * of_loss.side), Mib(2 * of_loss.scores), Mib(counted));
}

void Measure(World& world, bool checkpoint, const Sizes& sizes) {
  Training training(world, checkpoint, sizes);
  const auto plain = [&] { training.Plain(0); };
  const auto cached = [&] { training.Cached(); };
  plain();
  plain();
  const MemoryStats plain_peaks = PeaksOf(world, plain);
  const int64_t half = std::max<int64_t>(sizes.chunks / 8, 1);
  const auto steps = [&] {
    for (int64_t k = 0; k < half; ++k) training.Plain(k);
  };
  std::vector<double> plain_wall, cached_wall, wall_ratio, cpu_ratio;
  MemoryStats cached_peaks;
  for (int run = 0; run < sizes.runs; ++run) {
    const Seconds before = TimeOf(world, steps);
    Seconds all;
    cached_peaks = PeaksOf(world, [&] { all = TimeOf(world, cached); });
    const Seconds after = TimeOf(world, steps);
    const auto of_all = static_cast<double>(sizes.all());
    const auto of_plain = static_cast<double>(2 * half * sizes.pairs);
    plain_wall.push_back((before.wall + after.wall) / of_plain / world.size());
    cached_wall.push_back(all.wall / of_all / world.size());
    wall_ratio.push_back(cached_wall.back() / plain_wall.back());
    cpu_ratio.push_back(all.cpu / of_all / ((before.cpu + after.cpu) / of_plain));
  }
  const int64_t columns = training.columns();
  const int64_t counted_plain = CountedOfLoss(world, sizes.pairs, columns);
  const int64_t counted_all = CountedOfLoss(world, sizes.all(), columns);
  if (world.rank() != 0) return;
  std::printf("\n%d ranks, checkpoints %s, %lld pairs in a chunk, %lld chunks, %d runs\n",
              world.size(), checkpoint ? "on" : "off", static_cast<long long>(sizes.pairs),
              static_cast<long long>(sizes.chunks), sizes.runs);
  std::printf(
      "| ranks | checkpoint | plain ms a pair | cached ms a pair | ratio | ratio of CPU |\n");
  std::printf("| %d | %s | %.1f | %.1f | %.2f | %.2f |\n", world.size(), checkpoint ? "on" : "off",
              1e3 * Median(plain_wall), 1e3 * Median(cached_wall), Median(wall_ratio),
              Median(cpu_ratio));
  std::printf(
      "| step | peak MiB | shards | gradient shards | gathered | gradients | activations | "
      "embeddings | without | scores | loss alone |\n");
  PrintMemory("plain", plain_peaks, OfLoss(world.size(), sizes.pairs, columns), 3, counted_plain);
  PrintMemory("cached", cached_peaks, OfLoss(world.size(), sizes.all(), columns), 4, counted_all);
}

int Main(const Sizes& sizes, int only) {
  for (const int ranks : {1, 2}) {
    if (only > 0 && ranks != only) continue;
    for (const bool checkpoint : {false, true}) {
      testing::RankOptions options;
      options.collective_timeout = absl::Minutes(10);
      testing::RunRanks(
          ranks, [&](World& world) { Measure(world, checkpoint, sizes); }, options);
      std::fflush(stdout);
    }
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace sherd

int main(int argc, char** argv) {
  const auto argument = [&](int i, int value) { return argc > i ? std::atoi(argv[i]) : value; };
  const sherd::Sizes sizes{argument(1, 4), argument(2, 32), argument(3, 3)};
  if (sizes.pairs < 2 || sizes.chunks < 1 || sizes.runs < 1) {
    std::fprintf(stderr, "usage: cached_bench [pairs of a chunk] [chunks] [runs] [ranks]\n");
    return 2;
  }
  return sherd::Main(sizes, argument(4, 0));
}
