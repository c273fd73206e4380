// The engine for programs without exceptions; this file is compiled with -fno-exceptions.

#include "sherd/shard/unit_status.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sherd/runtime/comm/group_status.h"
#include "tests/support/ranks.h"

#if defined(__cpp_exceptions)
#error "the engine's Status forms are for programs without exceptions"
#endif

namespace sherd::testing {
namespace {

using absl::StatusCode;

std::unique_ptr<Unit> MakeWeight(World& world) {
  auto context = status::ContextOf(world.mesh());
  EXPECT_TRUE(context.ok()) << context.status();
  auto unit =
      status::MakeUnit("layer",
                       {{.name = "weight", .shape = {5}, .dtype = DType::kF64},
                        {.name = "frozen", .shape = {2}, .dtype = DType::kF64, .trainable = false}},
                       *context);
  EXPECT_TRUE(unit.ok()) << unit.status();
  for (int64_t k = 0; k < (*unit)->local(0).numel(); ++k) {
    (*unit)->local(0).data<double>()[k] = static_cast<double>((*unit)->local_offset(0) + k);
  }
  return *std::move(unit);
}

bool Has(const absl::Status& status, StatusCode code, const std::string& part) {
  const bool has =
      status.code() == code && std::string(status.message()).find(part) != std::string::npos;
  if (!has) ADD_FAILURE() << status;
  return has;
}

TEST(UnitStatus, AStepGivesTheSums) {
  for (const int ranks : {1, 2, 3}) {
    RunRanks(ranks, [&](World& world) {
      const std::unique_ptr<Unit> unit = MakeWeight(world);
      EXPECT_TRUE(status::EnterForward(*unit, 1).ok());
      EXPECT_EQ(unit->full(0).ToHost<double>(), (std::vector<double>{0, 1, 2, 3, 4}));
      EXPECT_TRUE(status::ExitForward(*unit).ok());
      EXPECT_TRUE(status::BeginBackward(*unit, 1).ok());
      const auto gradient = status::TakeGradient(*unit, 0);
      ASSERT_TRUE(gradient.ok()) << gradient.status();
      for (int k = 0; k < 5; ++k) gradient->tensor.data<double>()[k] = (world.rank() + 1) * k;
      EXPECT_TRUE(status::EndBackward(*unit).ok());
      EXPECT_TRUE(status::EndOfBackward(*unit->context()).ok());
      EXPECT_TRUE(status::WaitReductions(*unit->context(), 0).ok());
      const auto sum = status::LocalGradient(*unit, 0);
      ASSERT_TRUE(sum.ok()) << sum.status();
      for (int64_t k = 0; k < sum->numel(); ++k) {
        EXPECT_EQ(sum->data<double>()[k],
                  static_cast<double>(ranks * (ranks + 1) / 2 * (unit->local_offset(0) + k)));
      }
      double items = 1;
      EXPECT_TRUE(status::AllReduce(world.group(), &items, 1, DType::kF64).ok());
      EXPECT_EQ(items, ranks);
      EXPECT_TRUE(status::Barrier(world.group()).ok());
    });
  }
}

TEST(UnitStatus, MistakesAreValues) {
  RunRanks(2, [&](World& world) {
    const std::unique_ptr<Unit> unit = MakeWeight(world);
    Has(status::TakeGradient(*unit, 0).status(), StatusCode::kFailedPrecondition,
        "unit 'layer' has no open scope");
    Has(status::ExitForward(*unit), StatusCode::kFailedPrecondition, "[exit_forward]");
    Has(status::EndBackward(*unit), StatusCode::kFailedPrecondition, "[end_backward]");
    EXPECT_TRUE(status::BeginBackward(*unit, 1).ok());
    Has(status::TakeGradient(*unit, 1).status(), StatusCode::kFailedPrecondition, "'frozen'");
    Has(status::SetTrainable(*unit, 1, true), StatusCode::kFailedPrecondition, "'frozen'");
    unit->AbandonBackward();
    Has(status::MakeUnit("parked", {}, unit->context(), {.park = 7}).status(),
        StatusCode::kInvalidArgument, "7 ranks");
    Has(status::ContextOf(Mesh()).status(), StatusCode::kInvalidArgument, "undefined mesh");
    EXPECT_TRUE(status::CheckUsable(*unit->context()).ok()) << "mistakes end no step";
  });
}

TEST(UnitStatus, AFailedGatherEndsTheStepOnAllRanks) {
  RunRanks(2, [&](World& world) {
    const std::unique_ptr<Unit> unit = MakeWeight(world);
    if (world.rank() == 0) {
      EXPECT_TRUE(world.store().Set("made", "1").ok());
    } else {
      // The other rank is done with the collectives of making its unit.
      EXPECT_TRUE(world.store().Get("made", absl::Seconds(30)).ok());
      world.group().Abort(absl::CancelledError("the loader is empty"));
    }
    Has(status::EnterForward(*unit, 1), StatusCode::kAborted, "the loader is empty");
    EXPECT_FALSE(unit->open()) << "a scope that could not be opened is not open";
    Has(status::CheckUsable(*unit->context()), StatusCode::kFailedPrecondition, "new World");
    Has(status::Recover(*unit->context()), StatusCode::kFailedPrecondition, "new World");
    double value = 1;
    Has(status::AllReduce(world.group(), &value, 1, DType::kF64), StatusCode::kAborted,
        "rank 1 aborted");
    Has(status::Broadcast(world.group(), &value, 8, 0), StatusCode::kAborted, "rank 1 aborted");
    EXPECT_FALSE(status::Barrier(world.group()).ok());
    EXPECT_FALSE(world.Finish().ok());
  });
}

}  // namespace
}  // namespace sherd::testing
