// Rows of all ranks on the tape: values and gradients by hand, what is sent, and what is refused.

#include "sherd/shard/gather_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sherd/autograd/ops/arithmetic.h"
#include "sherd/autograd/ops/elementwise.h"
#include "sherd/autograd/ops/shape.h"
#include "sherd/autograd/tape.h"
#include "sherd/checkpoint/checkpoint.h"
#include "sherd/runtime/comm/recording_group.h"
#include "tests/support/ranks.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

// Rows of each rank; those after the last rank of a smaller world do not count.
using Rows = std::vector<int64_t>;

// Element (row, c) of what all ranks have together, and what rank r multiplies it with.
double ValueAt(int64_t row, int64_t c) { return static_cast<double>(10 * row + c) + 0.5; }
double WeightAt(int rank, int64_t row, int64_t c) {
  return static_cast<double>((3 * rank + 5 * row + 2 * c) % 7) - 2.25;
}

constexpr int64_t kColumns = 3;

struct Part {
  int64_t begin = 0, mine = 0, total = 0;
};

Part PartOf(const Rows& rows, int rank, int ranks) {
  Part part;
  for (int r = 0; r < ranks; ++r) {
    if (r == rank) part.begin = part.total;
    part.total += rows[static_cast<size_t>(r)];
  }
  part.mine = rows[static_cast<size_t>(rank)];
  return part;
}

template <typename T>
Tensor OwnRows(const Device& device, const Part& part) {
  std::vector<T> values;
  for (int64_t row = part.begin; row < part.begin + part.mine; ++row) {
    for (int64_t c = 0; c < kColumns; ++c) values.push_back(static_cast<T>(ValueAt(row, c)));
  }
  return TensorOf<T>(device, values, {part.mine, kColumns});
}

template <typename T>
Tensor WeightsOf(const Device& device, int rank, int64_t total) {
  std::vector<T> values;
  for (int64_t row = 0; row < total; ++row) {
    for (int64_t c = 0; c < kColumns; ++c) values.push_back(static_cast<T>(WeightAt(rank, row, c)));
  }
  return TensorOf<T>(device, values, {total, kColumns});
}

// Rank r's loss is the sum of its weights times all rows, so the gradient of a row is the sum of
// all ranks' weights of it.
template <typename T>
void CheckGather(World& world, const Rows& rows, bool leaf) {
  const Device& device = world.device();
  const Part part = PartOf(rows, world.rank(), world.size());
  const Tensor own = OwnRows<T>(device, part);
  Tape tape;
  const Recording on(tape);
  const Variable x = leaf ? Variable::Leaf(own) : Variable(own);
  const GatheredRows all = AllGatherRows(x, world.mesh());
  EXPECT_EQ(all.begin, part.begin);
  EXPECT_EQ(all.counts, Rows(rows.begin(), rows.begin() + world.size()));
  ASSERT_EQ(all.rows.shape(), (Shape{part.total, kColumns}));
  const std::vector<T> got = all.rows.value().ToHost<T>();
  for (size_t i = 0; i < got.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    EXPECT_EQ(got[i], static_cast<T>(ValueAt(at / kColumns, at % kColumns)));
  }
  ASSERT_TRUE(all.rows.requires_grad());
  tape.Backward(Sum(Mul(all.rows, Variable(WeightsOf<T>(device, world.rank(), part.total)))));
  if (!leaf || part.mine == 0) return;
  const std::vector<T> grad = x.grad().ToHost<T>();
  ASSERT_EQ(grad.size(), static_cast<size_t>(part.mine * kColumns));
  for (size_t i = 0; i < grad.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    double want = 0.0;
    for (int r = 0; r < world.size(); ++r) {
      want += WeightAt(r, part.begin + at / kColumns, at % kColumns);
    }
    EXPECT_EQ(grad[i], static_cast<T>(want));
  }
}

TEST(AllGatherRowsTest, GivesTheRowsInRankOrderAndSumsTheirGradients) {
  const std::vector<Rows> lengths = {{2, 2, 2, 2}, {3, 1, 2, 5}, {0, 4, 0, 1}, {1, 0, 0, 0}};
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const Rows& rows : lengths) {
      RunRanks(ranks, [&](World& world) {
        CheckGather<double>(world, rows, /*leaf=*/true);
        CheckGather<float>(world, rows, /*leaf=*/true);
      });
    }
  }
}

TEST(AllGatherRowsTest, ARankWhoseRowsWantNoGradientTakesPart) {
  RunRanks(3, [&](World& world) {
    CheckGather<double>(world, {2, 1, 3}, /*leaf=*/world.rank() == 1);
  });
}

TEST(AllGatherRowsTest, NoRowsAnywhereAreNoRows) {
  RunRanks(2, [&](World& world) { CheckGather<double>(world, {0, 0}, /*leaf=*/true); });
}

TEST(AllGatherRowsTest, TakesViewsAndMoreDimensions) {
  RunRanks(2, [](World& world) {
    const double first = world.rank() == 0 ? 1.0 : 7.0;
    std::vector<double> values;
    for (int i = 0; i < 6; ++i) values.push_back(first + i);
    const Variable x = Variable::Leaf(TensorOf<double>(world.device(), values, {3, 2, 1}));
    Tape tape;
    const Recording on(tape);
    // [2, 3, 1]: element (i, j) is first + 2 j + i.
    const GatheredRows all = AllGatherRows(Transpose(x, 0, 1), world.mesh());
    EXPECT_EQ(all.rows.shape(), (Shape{4, 3, 1}));
    EXPECT_EQ(all.rows.value().ToHost<double>(),
              (std::vector<double>{1, 3, 5, 2, 4, 6, 7, 9, 11, 8, 10, 12}));
    tape.Backward(Sum(Mul(all.rows, all.rows)));
    std::vector<double> want;
    for (double value : values) want.push_back(2 * 2 * value);
    EXPECT_EQ(x.grad().ToHost<double>(), want);
  });
}

TEST(GatherRowsOfTest, GathersIdsWithoutAGradient) {
  RunRanks(3, [](World& world) {
    const std::vector<int64_t> own(static_cast<size_t>(world.rank()), 100 + world.rank());
    const auto count = static_cast<int64_t>(own.size());
    const Tensor all = GatherRowsOf(TensorOf<int64_t>(world.device(), own, {count}), world.mesh());
    EXPECT_EQ(all.ToHost<int64_t>(), (std::vector<int64_t>{101, 102, 102}));
  });
}

TEST(AllReduceSumTest, SumsValuesAndGradients) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    RunRanks(ranks, [](World& world) {
      const double mine = world.rank() + 1.0;
      const double sum = world.size() * (world.size() + 1) / 2.0;
      const bool leaf = world.rank() == 0;
      const Tensor own = TensorOf<double>(world.device(), {mine, -mine}, {2});
      const Variable x = leaf ? Variable::Leaf(own) : Variable(own);
      Tape tape;
      const Recording on(tape);
      const Variable total = AllReduceSum(x, world.mesh());
      EXPECT_EQ(total.value().ToHost<double>(), (std::vector<double>{sum, -sum}));
      tape.Backward(Sum(Scale(Mul(total, total), mine)));
      // Every rank r adds (r + 1) 2 sum.
      if (!leaf) return;
      EXPECT_EQ(x.grad().ToHost<double>(), (std::vector<double>{2 * sum * sum, -2 * sum * sum}));
    });
  }
}

// What a step with one gather sends, plain or with checkpoints around it.
enum class Around { kNothing, kRegion, kRegionOfRegion, kThree };

std::vector<std::string> CallsOf(Around around, std::vector<double>& gradient, int backwards = 1) {
  std::vector<std::shared_ptr<CollectiveLog>> logs = {std::make_shared<CollectiveLog>(),
                                                      std::make_shared<CollectiveLog>()};
  std::mutex mutex;
  int made = 0;
  RankOptions options;
  options.wrap_group = [&](std::shared_ptr<ProcessGroup> group) {
    const std::lock_guard<std::mutex> lock(mutex);
    ++made;
    const auto rank = static_cast<size_t>(group->rank());
    return std::shared_ptr<ProcessGroup>(MakeRecordingGroup(std::move(group), logs[rank]));
  };
  const auto run = [&](World& world) {
    const Part part = PartOf({2, 3}, world.rank(), 2);
    const Variable x = Variable::Leaf(OwnRows<double>(world.device(), part));
    ProcessGroup& group = world.group();
    const auto body = [&group](const Variable& rows) {
      const Variable all = AllGatherRows(Mul(rows, rows), group).rows;
      return Sum(Mul(all, Scale(all, 1.0 / 64.0)));
    };
    const auto inner = [body](const Variable& rows) { return Scale(Checkpoint(body, rows), 2.0); };
    const auto outer = [inner](const Variable& rows) { return Checkpoint(inner, rows); };
    Tape tape;
    const Recording on(tape);
    Variable loss;
    if (around == Around::kNothing) loss = Scale(body(x), 2.0);
    if (around == Around::kRegion) loss = Scale(Checkpoint(body, x), 2.0);
    if (around == Around::kRegionOfRegion) loss = Checkpoint(inner, x);
    if (around == Around::kThree) loss = Checkpoint(outer, x);
    for (int k = 0; k < backwards; ++k) tape.Backward(loss, 1.0, {.retain = k + 1 < backwards});
    if (world.rank() == 1) gradient = x.grad().ToHost<double>();
  };
  RunRanks(2, run, options);
  EXPECT_GE(made, 2);
  std::vector<std::string> calls;
  for (const CollectiveRecord& record : logs[0]->records()) {
    if (record.op == CollectiveOp::kBarrier) continue;  // of the end of the world
    calls.push_back(std::string(NameOf(record.op)) + " " + std::to_string(record.bytes));
  }
  return calls;
}

TEST(AllGatherRowsTest, RunsOnceForEachForwardAndEachBackwardInCheckpointsToo) {
  std::vector<double> want;
  const std::vector<std::string> plain = CallsOf(Around::kNothing, want);
  // The lengths, the rows, and their gradient: 3 rows of 3 columns, the most of one rank.
  EXPECT_EQ(plain,
            (std::vector<std::string>{"all_gather 88", "all_gather 72", "reduce_scatter 72"}));
  // d/dx of 2 ranks * 2 / 64 * x^4.
  ASSERT_EQ(want.size(), 9u);
  EXPECT_EQ(want[0], 2 * 2 * 4 * std::pow(ValueAt(2, 0), 3) / 64.0);
  for (Around around : {Around::kRegion, Around::kRegionOfRegion, Around::kThree}) {
    std::vector<double> got;
    EXPECT_EQ(CallsOf(around, got), plain) << static_cast<int>(around);
    EXPECT_EQ(got, want) << static_cast<int>(around);
  }
}

TEST(AllGatherRowsTest, AKeptResultServesTwoBackwards) {
  std::vector<double> want, got;
  const std::vector<std::string> once = CallsOf(Around::kThree, want);
  const std::vector<std::string> twice = CallsOf(Around::kThree, got, 2);
  EXPECT_EQ(once.size(), 3u);
  EXPECT_EQ(twice.size(), 4u);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], 2 * want[i]);
}

// The texts of the ranks' errors.
std::vector<std::string> TextsOf(int ranks, const std::function<void(World&)>& body) {
  std::mutex mutex;
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  const auto run = [&](World& world) {
    const std::string text = ErrorOf([&] { body(world); });
    const std::lock_guard<std::mutex> lock(mutex);
    texts[static_cast<size_t>(world.rank())] = text;
  };
  ErrorOf([&] { RunRanks(ranks, run); });  // a group that was aborted ends with an error
  return texts;
}

Variable Of(World& world, DType dtype, const Shape& shape) {
  return Variable(Tensor::Zeros(world.device(), dtype, shape));
}

TEST(AllGatherRowsTest, WhatDoesNotFitIsAnErrorOnAllRanksAndTheGroupLives) {
  struct Case {
    DType dtype;
    Shape shape;
    std::string text;
  };
  const std::vector<Case> cases = {
      {DType::kF64, {2, 4}, "rank 1 gave [rows, 4], rank 0 gave [rows, 3]"},
      {DType::kF64, {2}, "rank 1 gave [rows], rank 0 gave [rows, 3]"},
      {DType::kF64, {2, 3, 1}, "rank 1 gave [rows, 3, 1], rank 0 gave [rows, 3]"},
      {DType::kF32, {2, 3}, "rank 1 gave f32, rank 0 gave f64"},
      {DType::kF64, {}, "rank 1 gave a scalar"}};
  for (const Case& c : cases) {
    const auto texts = TextsOf(2, [&](World& world) {
      const std::string text = ErrorOf([&] {
        AllGatherRows(
            world.rank() == 1 ? Of(world, c.dtype, c.shape) : Of(world, DType::kF64, {1, 3}),
            world.mesh());
      });
      AllGatherRows(Of(world, DType::kF64, {1, 3}), world.mesh());  // still usable
      EXPECT_TRUE(Contains(text, c.text));
    });
    for (const std::string& text : texts) EXPECT_EQ(text, "no error");
  }
}

TEST(AllGatherRowsTest, RecordingOnSomeRanksOnlyIsAnErrorOnAll) {
  for (const std::string& text : TextsOf(2, [](World& world) {
         const Variable x = Variable::Leaf(Of(world, DType::kF64, {1, 3}).value());
         Tape tape;
         std::optional<Recording> on;
         if (world.rank() == 0) on.emplace(tape);
         AllGatherRows(x, world.mesh());
       })) {
    EXPECT_TRUE(Contains(text, "rank 1 does not record, rank 0 wants a gradient"));
  }
}

TEST(AllGatherRowsTest, SumsOfDifferentShapesAreAnErrorOnAllRanks) {
  for (const std::string& text : TextsOf(2, [](World& world) {
         AllReduceSum(Of(world, DType::kF64, {2 + world.rank(), 3}), world.mesh());
       })) {
    EXPECT_TRUE(Contains(text, "rank 1 gave [3, 3], rank 0 gave [2, 3]"));
  }
}

TEST(AllGatherRowsTest, ARankThatThrowsOrMakesAnotherCallIsAnErrorOnAll) {
  for (const std::string& text : TextsOf(2, [](World& world) {
         AllGatherRows(world.rank() == 1 ? Variable() : Of(world, DType::kF64, {1, 3}),
                       world.mesh());
       })) {
    EXPECT_TRUE(Contains(text, "x is undefined"));
  }
  for (const std::string& text : TextsOf(2, [](World& world) {
         const Variable x = Of(world, DType::kF64, {1, 3});
         if (world.rank() == 0) AllReduceSum(x, world.mesh());
         AllGatherRows(x, world.mesh());
       })) {
    EXPECT_NE(text, "no error");
  }
}

}  // namespace
}  // namespace sherd::testing
