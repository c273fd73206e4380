// The C header as C++ sees it, and what C cannot ask: that its numbers are ours.

#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "absl/status/status.h"
#include "sherd/runtime/base/log.h"
#include "sherd/shard/c_api.h"

namespace sherd {
namespace {

TEST(CHeader, NumbersAreThoseOfTheLibrary) {
  EXPECT_EQ(SHERD_OK, static_cast<int>(absl::StatusCode::kOk));
  EXPECT_EQ(SHERD_UNKNOWN, static_cast<int>(absl::StatusCode::kUnknown));
  EXPECT_EQ(SHERD_INVALID_ARGUMENT, static_cast<int>(absl::StatusCode::kInvalidArgument));
  EXPECT_EQ(SHERD_DEADLINE_EXCEEDED, static_cast<int>(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(SHERD_RESOURCE_EXHAUSTED, static_cast<int>(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(SHERD_FAILED_PRECONDITION, static_cast<int>(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(SHERD_ABORTED, static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_EQ(SHERD_INTERNAL, static_cast<int>(absl::StatusCode::kInternal));
  EXPECT_EQ(SHERD_UNAVAILABLE, static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(SHERD_LOG_INFO, static_cast<int>(LogLevel::kInfo));
  EXPECT_EQ(SHERD_LOG_WARNING, static_cast<int>(LogLevel::kWarning));
  EXPECT_EQ(SHERD_LOG_ERROR, static_cast<int>(LogLevel::kError));
}

TEST(CHeader, OneRankRecoversAfterAFailure) {
  sherd_world* world = nullptr;
  ASSERT_EQ(sherd_world_join_store(nullptr, 0, 1, nullptr, &world), SHERD_OK) << sherd_error_text();
  const int64_t shape[] = {3};
  const sherd_parameter parameter = {"weight", SHERD_F32, 1, shape, 0, 0};
  sherd_unit* unit = nullptr;
  ASSERT_EQ(sherd_unit_create(world, "layer", &parameter, 1, nullptr, &unit), SHERD_OK);
  ASSERT_EQ(sherd_unit_unshard(unit, 1), SHERD_OK);
  EXPECT_EQ(sherd_world_recover(world), SHERD_OK) << "closes what is open";
  EXPECT_EQ(sherd_unit_reshard(unit), SHERD_FAILED_PRECONDITION);
  ASSERT_EQ(sherd_unit_unshard(unit, 1), SHERD_OK);
  EXPECT_EQ(sherd_unit_reshard(unit), SHERD_OK);
  sherd_unit_free(unit);
  EXPECT_EQ(sherd_world_rank(nullptr), -1);
  sherd_world_abort(world, "over");
  sherd_world_abort(nullptr, nullptr);
  double value = 1;
  EXPECT_EQ(sherd_world_all_reduce(world, &value, 1, SHERD_F64), SHERD_ABORTED);
  EXPECT_NE(std::string(sherd_error_text()).find("over"), std::string::npos);
  EXPECT_EQ(sherd_world_all_reduce(world, &value, 1, 17), SHERD_INVALID_ARGUMENT);
  sherd_world_free(world);
}

TEST(CHeader, JoinsAloneWithoutALauncher) {
  sherd_world* world = nullptr;
  ASSERT_EQ(sherd_world_join(nullptr, &world), SHERD_OK) << sherd_error_text();
  EXPECT_EQ(sherd_world_size(world), 1);
  EXPECT_EQ(sherd_world_barrier(world), SHERD_OK);
  EXPECT_EQ(sherd_world_finish(world), SHERD_OK);
  sherd_world_free(world);
  EXPECT_EQ(sherd_world_join(nullptr, nullptr), SHERD_INVALID_ARGUMENT);
  EXPECT_EQ(sherd_world_join_store(nullptr, 0, 2, nullptr, &world), SHERD_INVALID_ARGUMENT);
  EXPECT_NE(std::string(sherd_error_text()).find("2 ranks need a store"), std::string::npos);
}

// One rank gives up: the others are told why, in the call they are in, and go no further.
void GiveUpOnRankOne(sherd_store* store, int rank) {
  sherd_world* world = nullptr;
  ASSERT_EQ(sherd_world_join_store(store, rank, 2, nullptr, &world), SHERD_OK);
  const int64_t shape[] = {3};
  const sherd_parameter parameter = {"weight", SHERD_F32, 1, shape, 0, 0};
  sherd_unit* unit = nullptr;
  ASSERT_EQ(sherd_unit_create(world, "layer", &parameter, 1, nullptr, &unit), SHERD_OK);
  if (rank == 1) sherd_world_abort(world, "no data");
  EXPECT_EQ(sherd_unit_unshard(unit, 1), SHERD_ABORTED);
  EXPECT_NE(std::string(sherd_error_text()).find("rank 1 aborted: no data"), std::string::npos);
  EXPECT_EQ(sherd_unit_reshard(unit), SHERD_FAILED_PRECONDITION) << "it was not opened";
  EXPECT_EQ(sherd_unit_begin_backward(unit, 1), SHERD_FAILED_PRECONDITION);
  EXPECT_NE(std::string(sherd_error_text()).find("an earlier step failed"), std::string::npos);
  EXPECT_EQ(sherd_world_recover(world), SHERD_FAILED_PRECONDITION);
  EXPECT_EQ(sherd_world_finish(world), SHERD_ABORTED);
  sherd_unit_free(unit);
  sherd_world_free(world);
}

TEST(CHeader, ARankThatGivesUpEndsTheStepOfAll) {
  sherd_store* store = nullptr;
  ASSERT_EQ(sherd_store_create(&store), SHERD_OK);
  std::thread other(GiveUpOnRankOne, store, 1);
  GiveUpOnRankOne(store, 0);
  other.join();
  sherd_store_free(store);
}

}  // namespace
}  // namespace sherd
