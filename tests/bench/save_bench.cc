// Measures how long a save stops training: save_bench FOLDER [MiB of a rank's state] [ranks].
//
// Under a launcher each process is a rank; without one, the ranks are threads. A state is a model
// of f32 and AdamW's two moments. Each run times, one after the other and on all ranks at once, a
// plain copy of the bytes that a rank writes into memory that was used before, Begin, End once the
// file is written, and a save that is waited for. Prints rank 0's median and best of all runs, of
// the quotients of Begin and copy in one run too, and the first Begin, whose copy goes into fresh
// memory. FOLDER is made, and emptied at the end.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "sherd/autograd/optim/adamw.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/state.h"

namespace {

using Clock = std::chrono::steady_clock;
using sherd::World;

constexpr int kRuns = 15;
constexpr int kParameters = 16;
constexpr int64_t kTensors = 3 * kParameters;  // values and both moments

class Weights : public sherd::Module {
 public:
  explicit Weights(int64_t elements) {
    for (int i = 0; i < kParameters; ++i) {
      RegisterParameter("w" + std::to_string(i), {elements}, sherd::Initializer::Constant(0.5),
                        sherd::DType::kF32);
    }
  }
};

double Milliseconds(World& world, const std::function<void()>& body) {
  world.group().Barrier();
  const auto start = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - start).count() * 1e3;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double Best(std::vector<double> values) { return *std::min_element(values.begin(), values.end()); }

void Expect(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "save_bench: %s\n", status.ToString().c_str());
  std::exit(1);
}

void Bench(World& world, const std::string& folder, int64_t mebibytes) {
  const int64_t piece = (mebibytes << 20) / kTensors / 4 / 16 * 16;  // elements of a rank
  Weights model(piece * world.size());
  FullyShard(model, world.mesh());
  Initialize(model, world.device(), 1);
  sherd::AdamW optimizer(model.parameters());
  sherd::TrainingState state{.model = &model, .optimizer = &optimizer};
  sherd::StateSaver saver(folder, world.group(), {.keep = 1});
  const std::vector<std::vector<float>> from(kTensors,
                                             std::vector<float>(static_cast<size_t>(piece), 1.0f));
  std::vector<std::vector<float>> to = from;
  std::vector<double> copy, begin, end, save, quotient;
  double first = 0;
  for (int run = -1; run < kRuns; ++run) {
    const double copied = Milliseconds(world, [&] {
      for (size_t i = 0; i < from.size(); ++i) {
        std::memcpy(to[i].data(), from[i].data(), from[i].size() * sizeof(float));
      }
    });
    const double began = Milliseconds(world, [&] { Expect(saver.Begin(state)); });
    while (!saver.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const double ended = Milliseconds(world, [&] { Expect(saver.End().status()); });
    ++state.step;
    const double saved = Milliseconds(world, [&] { Expect(saver.Save(state).status()); });
    ++state.step;
    if (run < 0) {
      first = began;
      continue;
    }
    copy.push_back(copied);
    begin.push_back(began);
    end.push_back(ended);
    save.push_back(saved);
    quotient.push_back(began / copied);
  }
  world.group().Barrier();
  if (world.rank() != 0) return;
  std::printf("%6s %5s %10s %10s %10s %10s %10s %10s %10s\n", "", "ranks", "MiB a rank", "copy ms",
              "Begin ms", "Begin/copy", "End ms", "Save ms", "first ms");
  const double size = static_cast<double>(piece * kTensors * 4) / (1 << 20);
  for (const auto& [name, of] : {std::pair("median", &Median), std::pair("best", &Best)}) {
    std::printf("%6s %5d %10.1f %10.2f %10.2f %10.2f %10.2f %10.1f %10.1f\n", name, world.size(),
                size, of(copy), of(begin), of(quotient), of(end), of(save), first);
  }
  std::filesystem::remove_all(folder);
}

int Run(const std::string& folder, int64_t mebibytes, int threads) {
  absl::StatusOr<World> launched = World::FromEnvironment();
  if (launched.ok() && launched->size() > 1) {
    Bench(*launched, folder, mebibytes);
    return launched->Finish().ok() ? 0 : 1;
  }
  const std::shared_ptr<sherd::Store> store = sherd::MakeMemoryStore();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < threads; ++rank) {
    ranks.emplace_back([=] {
      absl::StatusOr<World> world = World::FromStore(store, rank, threads, {.threads = 1});
      if (!world.ok()) std::abort();
      Bench(*world, folder, mebibytes);
      static_cast<void>(world->Finish());
    });
  }
  for (std::thread& thread : ranks) thread.join();
  return launched.ok() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: save_bench FOLDER [MiB of a rank's state] [ranks as threads]\n");
    return 2;
  }
  return Run(argv[1], argc > 2 ? std::atoi(argv[2]) : 96, argc > 3 ? std::atoi(argv[3]) : 2);
}
