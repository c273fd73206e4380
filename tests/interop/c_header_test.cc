// The C header as C++ sees it, and what C cannot ask: that its numbers are ours.

#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace sherd
