// What exceptions of every kind become where they are handed on as values.

#include "sherd/runtime/base/status_of.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <stdexcept>
#include <string>

#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

TEST(StatusOf, SaysWhatWasThrown) {
  EXPECT_TRUE(StatusOf([] {}).ok());
  const absl::Status ours =
      StatusOf([] { ThrowInvalidArgument("shapes differ", {.op = "matmul"}); });
  EXPECT_EQ(ours.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(ours.message()), "[matmul] shapes differ");
  EXPECT_EQ(StatusOf([] { throw std::bad_alloc(); }).code(), absl::StatusCode::kResourceExhausted);
  const absl::Status theirs = StatusOf([] { throw std::runtime_error("their text"); });
  EXPECT_EQ(theirs.code(), absl::StatusCode::kUnknown);
  EXPECT_EQ(std::string(theirs.message()), "their text");
  EXPECT_EQ(StatusOf([] { throw 7; }).code(), absl::StatusCode::kUnknown);
}

TEST(StatusOf, HandsResultsOn) {
  const absl::StatusOr<std::unique_ptr<int>> seven =
      StatusOrOf([] { return std::make_unique<int>(7); });
  ASSERT_TRUE(seven.ok());
  EXPECT_EQ(**seven, 7);
  const absl::StatusOr<int> none = StatusOrOf([]() -> int { throw std::runtime_error("none"); });
  EXPECT_EQ(std::string(none.status().message()), "none");
}

}  // namespace
}  // namespace sherd
