#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "sherd/autograd/optim/adamw.h"
#include "sherd/shard/state.h"
#include "tests/shard/model.h"

namespace sherd::testing {

// A folder of this test's own, empty.
inline std::string FreshRoot(const std::string& name) {
  const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "saved" /
                                     test->test_suite_name() / test->name() / name;
  std::filesystem::remove_all(path);
  return path.string();
}

// The table again, as a head.
class TiedTable : public Module {
 public:
  explicit TiedTable(Parameter table) : table_(std::move(table)) { RegisterTied(table_); }
  Variable operator()(const Variable& x) {
    return Call(
        *this, [](TiedTable& self, const Variable& x) { return Linear(x, self.table_); }, x);
  }

 private:
  Parameter table_;
};

// Blocks of odd sizes between a table and the same table as a head, and a gain that has fewer
// elements than there are ranks.
class SavedModel : public Module {
 public:
  explicit SavedModel(DType dtype = DType::kF64)
      : table_(ShardBlock::kChannels, 7, Initializer::Normal(0.4), dtype), head_(table_.weight()) {
    RegisterModule("table", table_);
    for (int i = 0; i < 3; ++i) {
      blocks.push_back(std::make_unique<ShardBlock>());
      RegisterModule("block" + std::to_string(i), *blocks.back());
    }
    RegisterModule("head", head_);
    gain_ = RegisterParameter("gain", {1}, Initializer::Constant(0.5), dtype);
    frozen_ = RegisterParameter("frozen", {3}, Initializer::Constant(0.25), dtype);
    frozen_.set_requires_grad(false);
  }
  Variable operator()(const Variable& x) {
    return Call(
        *this,
        [](SavedModel& self, const Variable& x) {
          Variable y = x;
          for (auto& block : self.blocks) y = (*block)(y);
          return Mul(self.head_(y), self.gain_);
        },
        x);
  }

  std::vector<std::unique_ptr<ShardBlock>> blocks;

 private:
  LinearLayer table_;
  TiedTable head_;
  Parameter gain_, frozen_;
};

// A trainer of it whose steps take the same twelve inputs however many ranks there are.
struct SavedRun {
  enum class Sharding { kEachBlock, kWhole, kPlainData, kNone };

  explicit SavedRun(World& world, Sharding sharding = Sharding::kEachBlock, uint64_t seed = 1)
      : world(world), model(std::make_unique<SavedModel>()) {
    if (sharding == Sharding::kEachBlock) {
      for (auto& block : model->blocks) FullyShard(*block, world.mesh(), Sums());
    }
    FullyShardOptions options = Sums();
    if (sharding == Sharding::kPlainData) options.stage = kDataParallel;
    if (sharding != Sharding::kNone) FullyShard(*model, world.mesh(), options);
    Initialize(*model, world.device(), seed);
    optimizer = std::make_unique<AdamW>(model->parameters());
  }
  TrainingState State(int64_t step) {
    return {.model = model.get(), .optimizer = optimizer.get(), .step = step};
  }
  void Step(int64_t step) {
    Tape tape;
    for (int input = world.rank(); input < 12; input += world.size()) {
      const Recording on(tape);
      const Variable x = InputOf(world.device(), input, static_cast<uint64_t>(step));
      tape.Backward(Energy((*model)(x)));
      tape.Reset();
    }
    optimizer->Step({.learning_rate = 1e-2});
    for (const Parameter& parameter : optimizer->parameters()) parameter.ClearGrad();
  }
  // Values, moments and counts, whole. COLLECTIVE.
  Whole Everything();

  World& world;
  std::unique_ptr<SavedModel> model;
  std::unique_ptr<AdamW> optimizer;
};

// An optimizer's tensors and counts, whole.
class WholeState final : public OptimizerStateVisitor {
 public:
  WholeState(const Module& model, ProcessGroup& group, Whole& all)
      : model_(model), group_(group), all_(all) {}
  void OnTensor(const Parameter& parameter, std::string_view name, const Tensor& local) override {
    std::vector<double> whole(static_cast<size_t>(parameter.numel()), 0.0);
    const std::vector<double> piece = DoublesOf(local);
    if (Counts(model_, parameter) && (parameter.state().host != nullptr || group_.rank() == 0)) {
      std::copy(piece.begin(), piece.end(), whole.begin() + parameter.local_offset());
    }
    group_.AllReduce(whole.data(), static_cast<int64_t>(whole.size()), DType::kF64);
    all_[std::string(name) + " of " + parameter.name()] = std::move(whole);
  }
  void OnCount(const Parameter& parameter, std::string_view name, int64_t& count) override {
    all_[std::string(name) + " of " + parameter.name()] = {static_cast<double>(count)};
  }

 private:
  const Module& model_;
  ProcessGroup& group_;
  Whole& all_;
};

inline Whole SavedRun::Everything() {
  Whole all = ValuesOf(*model, &world.group());
  WholeState visitor(*model, world.group(), all);
  optimizer->VisitState(visitor);
  return all;
}

}  // namespace sherd::testing
