#include "sherd/runtime/base/error.h"

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "sherd/runtime/base/call_site.h"
#include "sherd/runtime/base/log.h"

namespace sherd {
namespace {

TEST(ErrorTest, TextNamesOpModuleAndCallSite) {
  const Error error(absl::StatusCode::kInvalidArgument, "shapes differ",
                    {.op = "matmul", .module_path = "model.head", .site = {"trainer.cc", 17}});
  EXPECT_STREQ(error.what(), "[matmul] shapes differ (in model.head) at trainer.cc:17");
  EXPECT_EQ(error.status().message(), "[matmul] shapes differ (in model.head) at trainer.cc:17");
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error.message(), "shapes differ");
}

TEST(ErrorTest, TextLeavesOutWhatIsUnknown) {
  EXPECT_STREQ(Error(absl::StatusCode::kInternal, "no more").what(), "no more");
  EXPECT_STREQ(Error(absl::StatusCode::kInternal, "no more", {.op = "sum"}).what(),
               "[sum] no more");
  EXPECT_STREQ(Error(absl::StatusCode::kInternal, "no more", {.module_path = "a.b"}).what(),
               "no more (in a.b)");
}

TEST(ErrorTest, WithFillsOnlyEmptyFields) {
  const Error inner(absl::StatusCode::kAborted, "peer left", {.op = "all_gather"});
  const Error outer = inner.With({.op = "step", .module_path = "blocks.3", .site = {"loop.cc", 5}});
  EXPECT_STREQ(outer.what(), "[all_gather] peer left (in blocks.3) at loop.cc:5");
  EXPECT_EQ(outer.code(), absl::StatusCode::kAborted);
  EXPECT_STREQ(outer.With({.module_path = "other"}).what(), outer.what());
  EXPECT_STREQ(inner.what(), "[all_gather] peer left");
}

TEST(ErrorTest, KeepsCodeOfAStatus) {
  const Error error(absl::NotFoundError("no file 'x'"), {.op = "load"});
  EXPECT_EQ(error.code(), absl::StatusCode::kNotFound);
  EXPECT_STREQ(error.what(), "[load] no file 'x'");
}

TEST(ErrorTest, CopiesDoNotThrow) {
  EXPECT_TRUE(std::is_nothrow_copy_constructible_v<Error>);
  EXPECT_TRUE(std::is_nothrow_copy_assignable_v<Error>);
}

TEST(ErrorTest, ThrowIfErrorThrowsOnlyErrors) {
  EXPECT_NO_THROW(ThrowIfError(absl::OkStatus()));
  try {
    ThrowIfError(absl::DataLossError("bad bytes"), {.op = "read"});
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kDataLoss);
    EXPECT_STREQ(error.what(), "[read] bad bytes");
  }
}

TEST(ErrorTest, FailedCheckNamesConditionAndPlace) {
  const int line = __LINE__ + 2;
  try {
    SHERD_CHECK(1 + 1 == 3, "arithmetic");
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(error.message(), "internal check failed: 1 + 1 == 3: arithmetic");
    EXPECT_EQ(error.context().site.line, line);
  }
  SHERD_CHECK(1 + 1 == 2, "arithmetic");
}

CallSite SiteOfCaller(CallSite site = CallSite::Here()) { return site; }

TEST(CallSiteTest, IsTheLineOfTheCaller) {
  const CallSite site = SiteOfCaller();
  EXPECT_EQ(site.line, __LINE__ - 1);
  EXPECT_NE(std::string(site.file).find("base_error_test.cc"), std::string::npos);
}

TEST(LogTest, StderrSinkWritesRankLevelAndText) {
  const LogSink sink = StderrLogSink();
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  sink({.level = LogLevel::kWarning, .rank = 3, .text = "slow"});
  sink({.level = LogLevel::kError, .text = "gone"});
  sink({.rank = 0, .text = "ready"});
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "[sherd rank 3] warning: slow\n[sherd] error: gone\n[sherd rank 0] ready\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

}  // namespace
}  // namespace sherd
