// The state in tests/golden/state was saved once by two ranks and stays: whoever changes the format
// goes on reading it. What is in it, values.txt says, which golden/read_state.py wrote without this
// library. Elements and counts follow from a rule (ValueOf), so the same state can be saved again.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>

#include "sherd/autograd/optim/adamw.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "tests/shard/saved.h"

namespace sherd::testing {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kStep = 7;
const std::map<std::string, std::string> kEntries = {{"position", "epoch 1, \xC3\xBC"},
                                                     {"seed", "42"}};
constexpr LossScalerState kScaler = {.scale = 1024.5, .good_steps = 17};

std::string GoldenFolder() { return std::string(SHERD_GOLDEN_STATE) + "/step-00000007"; }

// A table that is tied to the head, and parameters of other dtypes, of which one has fewer elements
// than there are ranks and one is frozen.
class GoldenModel : public Module {
 public:
  GoldenModel() : table_(5, 7, Initializer::Constant(0.0), DType::kF32), head_(table_.weight()) {
    RegisterModule("table", table_);
    RegisterModule("head", head_);
    RegisterParameter("up", {3, 5}, Initializer::Constant(0.0), DType::kBF16);
    RegisterParameter("gain", {1}, Initializer::Constant(0.0), DType::kF64);
    RegisterParameter("frozen", {3}, Initializer::Constant(0.0), DType::kF32)
        .set_requires_grad(false);
  }

 private:
  LinearLayer table_;
  TiedTable head_;
};

struct GoldenRun {
  explicit GoldenRun(World& world) : world(world) {
    FullyShard(model, world.mesh(), Sums());
    Initialize(model, world.device(), 1);
    optimizer = std::make_unique<AdamW>(model.parameters());
  }
  TrainingState State(int64_t step) {
    return {.model = &model, .optimizer = optimizer.get(), .scaler = &scaler, .step = step};
  }

  World& world;
  GoldenModel model;
  std::unique_ptr<AdamW> optimizer;
  LossScaler scaler;
};

// An element of a golden tensor, another one in each. Eight bits hold it.
double ValueOf(const std::string& tensor, int64_t element) {
  const int64_t letters = std::accumulate(tensor.begin(), tensor.end(), int64_t{0});
  return static_cast<double>((element * 7 + letters * 11) % 200 - 100) / 16;
}

int64_t CountOf(const Parameter& parameter) {
  return 5 + static_cast<int64_t>(parameter.name().size());
}

class Fill final : public OptimizerStateVisitor {
 public:
  void OnTensor(const Parameter& parameter, std::string_view name, const Tensor& local) override {
    if (local.numel() == 0) return;
    std::vector<double> values;
    for (int64_t i = 0; i < local.numel(); ++i) {
      values.push_back(
          ValueOf(std::string(name) + " of " + parameter.name(), parameter.local_offset() + i));
    }
    kernels::Cast(TensorOf<double>(local.device(), values, {local.numel()}), local);
  }
  void OnCount(const Parameter& parameter, std::string_view, int64_t& count) override {
    count = CountOf(parameter);
  }
};

Whole Everything(GoldenRun& run) {
  Whole all;
  for (auto& [name, values] : ValuesOf(run.model, &run.world.group())) {
    all["value of " + name] = values;
  }
  WholeState visitor(run.model, run.world.group(), all);
  run.optimizer->VisitState(visitor);
  return all;
}

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

// Lines "NAME: NUMBER NUMBER ...".
Whole Written() {
  Whole all;
  std::istringstream lines(ReadAll(fs::path(SHERD_GOLDEN_STATE) / "values.txt"));
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    std::vector<double>& values = all[line.substr(0, colon)];
    std::istringstream numbers(line.substr(colon + 2));
    for (std::string number; numbers >> number;) values.push_back(std::stod(number));
  }
  return all;
}

TEST(GoldenStateTest, AnyNumberOfRanksReadsWhatStandsThere) {
  const Whole written = Written();
  ASSERT_EQ(written.size(), 4u + 3 * 3u);  // the frozen parameter has a value alone
  for (const int ranks : {1, 2, 3}) {
    SCOPED_TRACE(ranks);
    RunRanks(ranks, [&](World& world) {
      GoldenRun run(world);
      TrainingState state = run.State(0);
      const absl::StatusOr<LoadReport> report = LoadState(GoldenFolder(), state, world.group());
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(state.step, kStep);
      EXPECT_EQ(state.entries, kEntries);
      EXPECT_EQ(run.scaler.state().scale, kScaler.scale);
      EXPECT_EQ(run.scaler.state().good_steps, kScaler.good_steps);
      const Whole all = Everything(run);
      ASSERT_EQ(all.size(), written.size());
      for (const auto& [name, values] : written) EXPECT_EQ(all.at(name), values) << name;
    });
  }
}

// While today's format is the one of the golden state. The folder it leaves is how that was made.
TEST(GoldenStateTest, TheSameStateSavedTodayHasTheSameBytes) {
  const std::string root = FreshRoot("today");
  RunRanks(2, [&](World& world) {
    GoldenRun run(world);
    Fill fill;
    for (const Parameter& parameter : run.model.parameters()) {
      fill.OnTensor(parameter, "value", parameter.MutableLocal());
    }
    run.optimizer->VisitState(fill);
    run.scaler.Restore(kScaler);
    TrainingState state = run.State(kStep);
    state.entries = kEntries;
    StateSaver saver(root, world.group(), {.written_by = "golden"});
    ASSERT_TRUE(saver.Save(state).ok());
  });
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(GoldenFolder())) {
    names.push_back(entry.path().filename());
    EXPECT_EQ(ReadAll(fs::path(root) / "step-00000007" / names.back()), ReadAll(entry.path()))
        << names.back();
  }
  EXPECT_EQ(names.size(), 3u);
}

}  // namespace
}  // namespace sherd::testing
