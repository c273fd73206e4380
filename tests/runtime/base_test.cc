#include <gtest/gtest.h>

#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

TEST(ErrorTest, TextNamesOpModuleAndCallSite) {
  const Error error(absl::StatusCode::kInvalidArgument, "shapes differ",
                    {.op = "matmul", .module_path = "model.head", .site = {"trainer.cc", 17}});
  EXPECT_STREQ(error.what(), "[matmul] shapes differ (in model.head) at trainer.cc:17");
}

}  // namespace
}  // namespace sherd
