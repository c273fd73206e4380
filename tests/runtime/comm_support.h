#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/ranks.h"

namespace sherd::testing {

// The error `body` throws; fails the test when it throws none.
template <typename Body>
Error Thrown(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error was thrown";
  return Error(absl::StatusCode::kOk, "");
}

// RunRanks for bodies after which the group has failed: Finish may say so, nothing else may.
inline void RunFailing(int world, const std::function<void(World&)>& body,
                       RankOptions options = {}) {
  std::mutex mutex;
  int ended = 0;
  try {
    RunRanks(
        world,
        [&](World& w) {
          body(w);
          std::lock_guard<std::mutex> lock(mutex);
          ++ended;
        },
        options);
  } catch (const Error&) {
  }
  EXPECT_EQ(ended, world) << "a body threw";
}

// Expects every one of `parts` in the error's text.
inline void ExpectHas(const Error& error, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
        << "'" << part << "' is missing in: " << error.what();
  }
}

}  // namespace sherd::testing
