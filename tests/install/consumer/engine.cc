// A trainer with a backward of its own: the unit engine alone, without tape, modules and oneDNN.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/base/version.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/shard/context.h"
#include "sherd/shard/plan.h"
#include "sherd/shard/unit.h"

namespace {

// loss = sum of (i + 1) w_i; returns the largest difference of its gradient from i + 1.
double Step(const sherd::World& world) {
  constexpr int64_t kSize = 5;
  sherd::Unit unit("layer", {{"w", sherd::Shape({kSize}), sherd::DType::kF64}},
                   sherd::ShardContext::Of(world.mesh()));
  for (int64_t i = 0; i < unit.local(0).numel(); ++i) unit.local(0).data<double>()[i] = 2.0;
  unit.EnterForward(1);
  double loss = 0.0;
  for (int64_t i = 0; i < kSize; ++i) {
    loss += static_cast<double>(i + 1) * unit.full(0).data<double>()[i];
  }
  unit.ExitForward(sherd::AfterScope::kReshard);
  unit.BeginBackward(1);
  double* const gradient = unit.TakeGradient(0).tensor.data<double>();
  for (int64_t i = 0; i < kSize; ++i) gradient[i] = static_cast<double>(i + 1);
  unit.EndBackward();
  unit.FinishGradients();
  const sherd::Tensor reduced = unit.LocalGradient(0);
  double worst = std::abs(loss - 30.0);
  for (int64_t i = 0; i < reduced.numel(); ++i) {
    const auto expected = static_cast<double>(i + 1 + unit.local_offset(0));
    worst = std::fmax(worst, std::abs(reduced.data<double>()[i] - expected));
  }
  return reduced.numel() == kSize ? worst : INFINITY;
}

// An error that one library throws, caught by its type in this program.
bool CatchesAnError() {
  try {
    sherd::MakePlan({}, {.micro_batches = -1});
  } catch (const sherd::Error& error) {
    return error.code() == absl::StatusCode::kInvalidArgument;
  }
  return false;
}

}  // namespace

int main() {
  try {
    absl::StatusOr<sherd::World> world = sherd::World::FromEnvironment();
    if (!world.ok()) {
      std::fprintf(stderr, "engine: %s\n", std::string(world.status().message()).c_str());
      return 1;
    }
    const double worst = Step(*world);
    const bool caught = CatchesAnError();
    std::printf("engine: %s, error %.1e, the library's error was %s\n",
                sherd::DescribeBuild().c_str(), worst, caught ? "caught" : "not caught");
    return worst == 0.0 && caught ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "engine: %s\n", error.what());
    return 1;
  }
}
