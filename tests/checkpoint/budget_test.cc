// A memory budget is never exceeded, and what it buys is close to the best.

#include "sherd/checkpoint/budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <vector>

#include "tests/checkpoint/llama.h"

namespace sherd::testing {
namespace {

constexpr int kBlocks = 4;
// Room for everything.
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

struct Budgeted {
  std::shared_ptr<MemoryBudget> budget;
  std::shared_ptr<CheckpointStats> stats = std::make_shared<CheckpointStats>();
  Device device = Device::Cpu();
  LlamaStack model{device, DType::kF64, kBlocks};

  explicit Budgeted(int64_t bytes, const KeepPolicy& policy = {})
      : budget(std::make_shared<MemoryBudget>(bytes)) {
    for (auto& block : model.blocks()) {
      Checkpoint(*block, {.policy = policy, .budget = budget, .stats = stats});
    }
  }
  // The counts of one step alone.
  CheckpointStats Step(const StepOptions& options = {}) {
    *stats = CheckpointStats{};
    RunStep(model, device, DType::kF64, options);
    return *stats;
  }
};

TEST(Budget, NeverExceededAndFollowedBySameBits) {
  Budgeted everything(kAll);
  everything.Step();
  const int64_t most = everything.Step().peak_kept_bytes;
  for (int64_t part : {0, 1, 3, 5, 7, 9, 10}) {
    const int64_t bytes = most * part / 10;
    SCOPED_TRACE(bytes);
    Budgeted run(bytes);
    LlamaStack plain(run.device, DType::kF64, kBlocks);
    const StepValues want = RunStep(plain, run.device, DType::kF64, {.calls = 2});
    for (int step = 0; step < 3; ++step) {
      *run.stats = CheckpointStats{};
      ExpectSameValues(RunStep(run.model, run.device, DType::kF64, {.calls = 2}), want);
      // Counted by the checkpoints, not by the budget.
      EXPECT_LE(run.stats->peak_kept_bytes, bytes);
      EXPECT_EQ(run.stats->kept_bytes, 0);
    }
    const BudgetReport report = run.budget->report();
    EXPECT_LE(report.peak_bytes, bytes);
    EXPECT_EQ(report.used_bytes, 0);
    EXPECT_EQ(report.rounds, 3);
    EXPECT_EQ(report.plans, 1) << "once";
  }
}

TEST(Budget, FirstRoundKeepsProductsWhileItLasts) {
  Budgeted run(kAll);
  const CheckpointStats first = run.Step();
  EXPECT_EQ(first.repeated_flops, 0.0);
  EXPECT_EQ(first.kept_ops, 4 * kBlocks);
  const CheckpointStats planned = run.Step();
  EXPECT_EQ(planned.repeated_ops, 0) << "there is room for everything";
  Budgeted norms(kAll, KeepKinds({OpKind::kNorm}));
  EXPECT_EQ(norms.Step().kept_ops, 2 * kBlocks);
  Budgeted none(0);
  EXPECT_EQ(none.Step().kept_ops, 0);
  EXPECT_EQ(none.Step().repeated_ops, 11 * kBlocks);
}

TEST(Budget, EachByteBuysWork) {
  Budgeted everything(kAll);
  everything.Step();
  const int64_t most = everything.Step().peak_kept_bytes;
  double last = std::numeric_limits<double>::infinity();
  std::printf("%12s %12s %12s %10s %10s\n", "budget", "kept", "repeated ops", "work", "of");
  for (int part = 0; part <= 10; ++part) {
    Budgeted run(most * part / 10);
    run.Step();
    const CheckpointStats s = run.Step();
    const BudgetReport report = run.budget->report();
    std::printf("%12lld %12lld %12lld %10.0f %10.0f\n", static_cast<long long>(most * part / 10),
                static_cast<long long>(s.peak_kept_bytes), static_cast<long long>(s.repeated_ops),
                report.planned_cost, report.full_cost);
    EXPECT_LE(report.planned_cost, last) << "more memory repeats more";
    last = report.planned_cost;
    EXPECT_EQ(report.planned_ops, s.kept_ops) << "the plan is what happens";
    EXPECT_EQ(report.planned_bytes, s.peak_kept_bytes);
    // Better than spending the same share of the memory evenly would have to be: half of the
    // budget leaves less than half of the work.
    if (part == 5) {
      EXPECT_LT(report.planned_cost, 0.5 * report.full_cost);
    }
  }
  EXPECT_EQ(last, 0.0);
}

// The best choice of all, by trying every set of ops of a small function.
TEST(Budget, CloseToTheBestOfAllChoices) {
  const Device device = Device::Cpu();
  const auto body = [](const Variable& in) {
    const Variable a = Silu(in);
    const Variable b = Mul(a, in);
    const Variable c = Silu(Scale(b, 0.5));
    return Silu(Mul(c, Silu(a)));
  };
  const auto run = [&](const CheckpointOptions& options) {
    const Variable x = Variable::Leaf(NormalTensor(device, DType::kF64, {32}, 1));
    Tape tape;
    const Recording on(tape);
    tape.Backward(Sum(Checkpoint(options, body, x)));
  };
  for (int64_t values : {0, 1, 2, 3, 4, 6}) {
    const int64_t bytes = values * 32 * 8;
    int64_t best = std::numeric_limits<int64_t>::max();
    for (int set = 0; set < 1 << 7; ++set) {
      auto stats = std::make_shared<CheckpointStats>();
      run({.policy = [set](const OpInfo& op) { return (set >> op.ordinal & 1) != 0; },
           .stats = stats});
      if (stats->peak_kept_bytes <= bytes) best = std::min(best, stats->repeated_ops);
    }
    auto stats = std::make_shared<CheckpointStats>();
    auto budget = std::make_shared<MemoryBudget>(bytes);
    run({.budget = budget, .stats = stats});
    *stats = CheckpointStats{};
    run({.budget = budget, .stats = stats});
    std::printf("%lld values: best %lld ops, greedy %lld\n", static_cast<long long>(values),
                static_cast<long long>(best), static_cast<long long>(stats->repeated_ops));
    EXPECT_LE(stats->peak_kept_bytes, bytes);
    EXPECT_LE(stats->repeated_ops, best + 1);
  }
}

TEST(Budget, OtherShapesArePlannedAnewAndStayWithinIt) {
  Budgeted run(12000);
  const StepOptions large{.batch = 4};
  const StepOptions small{.batch = 1};
  run.Step(small);
  run.Step(small);
  EXPECT_EQ(run.budget->report().plans, 1);
  EXPECT_LE(run.Step(large).peak_kept_bytes, 12000) << "before the new plan";
  EXPECT_EQ(run.budget->report().plans, 2);
  const CheckpointStats planned = run.Step(large);
  EXPECT_LE(planned.peak_kept_bytes, 12000);
  EXPECT_EQ(planned.kept_ops, run.budget->report().planned_ops);
  EXPECT_EQ(run.budget->report().plans, 2);
  run.Step({.batch = 4, .calls = 2});
  EXPECT_EQ(run.budget->report().plans, 3) << "more calls in a round";
}

TEST(Budget, CheckpointsInsideEachOtherShareIt) {
  for (int64_t bytes : {0, 3000, 9000, 100000}) {
    auto budget = std::make_shared<MemoryBudget>(bytes);
    auto offload = std::make_shared<Offload>();
    const CheckpointOptions options{.budget = budget, .offload = bytes == 9000 ? offload : nullptr};
    const auto wrap = [&](LlamaStack& m) {
      for (auto& block : m.blocks()) Checkpoint(*block, options);
      Checkpoint(m, options);
    };
    const Device device = Device::Cpu();
    LlamaStack plain(device, DType::kF64, kBlocks);
    LlamaStack model(device, DType::kF64, kBlocks);
    wrap(model);
    const StepValues want = RunStep(plain, device, DType::kF64, {.calls = 2});
    for (int step = 0; step < 3; ++step) {
      ExpectSameValues(RunStep(model, device, DType::kF64, {.calls = 2}), want);
      EXPECT_LE(budget->report().peak_bytes, bytes);
      EXPECT_EQ(budget->report().used_bytes, 0);
    }
    EXPECT_EQ(budget->report().rounds, 3);
    EXPECT_EQ(budget->report().plans, 1);
    EXPECT_EQ(budget->report().planned_ops > 0, bytes > 0);
  }
}

TEST(Budget, TheSameOnEveryRankAndInEveryRun) {
  Budgeted a(9000);
  Budgeted b(9000);
  for (int step = 0; step < 3; ++step) {
    const CheckpointStats sa = a.Step();
    const CheckpointStats sb = b.Step();
    EXPECT_EQ(sa.ToString(), sb.ToString());
    EXPECT_EQ(sa.kept_ops, sb.kept_ops);
  }
  EXPECT_EQ(a.budget->report().ToString(), b.budget->report().ToString());
}

TEST(Budget, FailedAndUnusedCallsGiveTheirBytesBack) {
  const Device device = Device::Cpu();
  auto budget = std::make_shared<MemoryBudget>(1 << 20);
  const Variable x = Variable::Leaf(NormalTensor(device, DType::kF64, {8}, 1));
  {
    Tape tape;
    const Recording on(tape);
    const CheckpointOptions options{.policy = KeepAll(), .budget = budget};
    EXPECT_NE(ErrorOf([&] {
                Checkpoint(
                    options, [](const Variable& in) { return Add(Silu(in), Variable()); }, x);
              }),
              "no error");
    EXPECT_EQ(budget->report().used_bytes, 0);
    Checkpoint(
        options, [](const Variable& in) { return Silu(in).Detach(); }, x);
    EXPECT_EQ(budget->report().used_bytes, 0);
    const Variable y = Checkpoint(
        options, [](const Variable& in) { return Silu(Silu(in)); }, x);
    EXPECT_EQ(budget->report().used_bytes, 64);
    EXPECT_EQ(budget->report().rounds, 0);
  }
  EXPECT_EQ(budget->report().used_bytes, 0) << "the tape is gone";
  EXPECT_EQ(budget->report().rounds, 1);
  EXPECT_TRUE(Contains(ErrorOf([] { MemoryBudget(-1); }), "a budget of -1 bytes"));
}

}  // namespace
}  // namespace sherd::testing
