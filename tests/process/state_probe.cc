// Saves states one after another until it is killed, or checks the newest one: what
// state_kill_test.py runs. Every element of the state of step N is N, so a state that is made of
// two would be seen.
//
//   state_probe ROOT save [STEPS]     as a rank of a launch; prints "saved N"
//   state_probe ROOT check            as a single process; prints "step N"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "sherd/autograd/optim/adamw.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/comm/world.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/shard/fully_shard.h"
#include "sherd/shard/state.h"

namespace {

using sherd::Initializer;
using sherd::Parameter;

class Weights : public sherd::Module {
 public:
  Weights() {
    for (const auto& [name, shape] :
         {std::pair("large", sherd::Shape({300, 1000})), std::pair("odd", sherd::Shape({7, 3})),
          std::pair("one", sherd::Shape({1}))}) {
      RegisterParameter(name, shape, Initializer::Constant(0.0), sherd::DType::kF32);
    }
  }
};

// Sets every element and count to `step`, or finds one that is not.
class Mark final : public sherd::OptimizerStateVisitor {
 public:
  Mark(int64_t step, bool check) : step_(step), check_(check) {}
  void OnTensor(const Parameter& parameter, std::string_view name,
                const sherd::Tensor& local) override {
    if (!check_) return sherd::kernels::Fill(local, static_cast<double>(step_));
    for (float value : local.ToHost<float>()) {
      if (value != static_cast<float>(step_)) wrong = std::string(name) + " of " + parameter.name();
    }
  }
  void OnCount(const Parameter& parameter, std::string_view name, int64_t& count) override {
    if (check_ && count != step_) wrong = std::string(name) + " of " + parameter.name();
    if (!check_) count = step_;
  }
  void All(const sherd::Module& model, sherd::Optimizer& optimizer) {
    for (const Parameter& parameter : model.parameters()) {
      OnTensor(parameter, "value", check_ ? parameter.local() : parameter.MutableLocal());
    }
    optimizer.VisitState(*this);
  }

  std::string wrong;

 private:
  const int64_t step_;
  const bool check_;
};

int Complain(const absl::Status& status) {
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

int Save(sherd::World& world, const std::string& root, int64_t steps) {
  Weights model;
  FullyShard(model, world.mesh());
  Initialize(model, world.device(), 1);
  sherd::AdamW optimizer(model.parameters());
  sherd::StateSaver saver(root, world.group(), {.keep = 2});
  const auto latest = sherd::LatestState(root);
  if (!latest.ok()) return Complain(latest.status());
  world.group().Barrier();
  int64_t step = 0;
  if (*latest) step = std::atoll((*latest)->substr((*latest)->rfind('-') + 1).c_str());
  for (const int64_t end = step + steps; step < end;) {
    Mark(++step, /*check=*/false).All(model, optimizer);
    const auto saved = saver.Save({.model = &model, .optimizer = &optimizer, .step = step});
    if (!saved.ok()) return Complain(saved.status());
    if (world.rank() == 0) std::printf("saved %lld\n", static_cast<long long>(step));
    std::fflush(stdout);
  }
  const absl::Status left = world.Finish();
  return left.ok() ? 0 : Complain(left);
}

int Check(sherd::World& world, const std::string& root) {
  const auto latest = sherd::LatestState(root);
  if (!latest.ok()) return Complain(latest.status());
  if (!*latest) return std::printf("step 0\n"), 0;
  Weights model;
  FullyShard(model, world.mesh());
  Initialize(model, world.device(), 1);
  sherd::AdamW optimizer(model.parameters());
  sherd::TrainingState state{.model = &model, .optimizer = &optimizer};
  const auto loaded = sherd::LoadState(**latest, state, world.group());
  if (!loaded.ok()) return Complain(loaded.status());
  Mark mark(state.step, /*check=*/true);
  mark.All(model, optimizer);
  if (!mark.wrong.empty()) return Complain(absl::InternalError(mark.wrong + " is of another step"));
  std::printf("step %lld\n", static_cast<long long>(state.step));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return Complain(absl::InvalidArgumentError("state_probe ROOT save|check"));
  try {
    absl::StatusOr<sherd::World> world = sherd::World::FromEnvironment(
        {.rendezvous_timeout = absl::Seconds(20), .collective_timeout = absl::Seconds(5)});
    if (!world.ok()) return Complain(world.status());
    if (std::string(argv[2]) == "check") return Check(*world, argv[1]);
    return Save(*world, argv[1], argc > 3 ? std::atoll(argv[3]) : 1000000);
  } catch (const sherd::Error& error) {
    return Complain(error.status());
  }
}
