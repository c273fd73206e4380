// A program that the launch tests start under a launcher: launch_probe <mode>.
//
//   sum        adds up the ranks, prints one line "rank R of W (local L of M): sum S", ends with 0
//   meet       as sum, but waits for the others for 3 s only
//   big        as sum, after adding up 4 MiB that differ by rank and element
//   threads N  as sum, with N threads
//   loop       reduces for ever; prints an error's text and ends with 3
//   throw R    as loop, but rank R throws after a while
//   retry      under torchrun: rank 1 of the first attempt ends with 7 after the ranks have met;
//              later attempts are as sum
//   stop R     as loop, but rank R does not call any more after a while, with a deadline of 2 s
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "sherd/runtime/comm/world.h"

namespace {

using sherd::World;

void PrintSum(World& world) {
  int64_t sum = world.rank();
  world.group().AllReduce(&sum, 1, sherd::DType::kI64);
  std::printf("rank %d of %d (local %d of %d): sum %lld\n", world.rank(), world.size(),
              world.local_rank(), world.local_size(), static_cast<long long>(sum));
  std::fflush(stdout);
}

void ReduceForEver(World& world, const std::string& mode, int chosen) {
  std::vector<float> data(size_t{4} << 20, 1.0f);
  for (int step = 0;; ++step) {
    world.group().AllReduce(data.data(), static_cast<int64_t>(data.size()), sherd::DType::kF32);
    if (step == 0) {
      std::printf("rank %d runs as process %d\n", world.rank(), static_cast<int>(getpid()));
      std::fflush(stdout);
    }
    if (step < 5 || world.rank() != chosen) continue;
    if (mode == "throw") throw std::runtime_error("the optimizer of this rank is broken");
    if (mode == "stop") std::this_thread::sleep_for(std::chrono::seconds(30));
  }
}

// Small whole numbers: their sum is exact in any order.
void CheckLargeSum(World& world) {
  std::vector<float> data(size_t{1} << 20);
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<float>((i % 1000) * static_cast<size_t>(world.rank() + 1));
  }
  world.group().AllReduce(data.data(), static_cast<int64_t>(data.size()), sherd::DType::kF32);
  const size_t factor = static_cast<size_t>(world.size() * (world.size() + 1) / 2);
  for (size_t i = 0; i < data.size(); ++i) {
    if (data[i] != static_cast<float>((i % 1000) * factor)) {
      throw std::runtime_error("element " + std::to_string(i) + " has a wrong sum");
    }
  }
}

int Run(const std::string& mode, int chosen) {
  sherd::WorldOptions options{.rendezvous_timeout = absl::Seconds(20),
                              .log = sherd::StderrLogSink()};
  if (mode == "meet") options.rendezvous_timeout = absl::Seconds(3);
  if (mode == "threads") options.threads = chosen;
  if (mode == "stop") options.collective_timeout = absl::Seconds(2);
  absl::StatusOr<World> world = World::FromEnvironment(options);
  if (!world.ok()) {
    std::printf("no world: %s\n", world.status().ToString().c_str());
    return 2;
  }
  const char* attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  if (mode == "retry" && attempt != nullptr && std::string(attempt) == "0") {
    world->group().Barrier();
    if (world->rank() == 1) std::_Exit(7);
    ReduceForEver(*world, mode, -1);
  }
  if (mode == "big") CheckLargeSum(*world);
  if (mode != "loop" && mode != "throw" && mode != "stop") {
    PrintSum(*world);
    return world->Finish().ok() ? 0 : 4;
  }
  ReduceForEver(*world, mode, chosen);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc > 1 ? argv[1] : "sum", argc > 2 ? std::atoi(argv[2]) : -1);
  } catch (const std::exception& error) {
    std::printf("failed: %s\n", error.what());
    return 3;
  }
}
