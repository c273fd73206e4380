// What torchrun's agent reads of a failed process, and the file it lies in.
#include "sherd/runtime/comm/failure_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "sherd/runtime/base/json_text.h"

namespace sherd {
namespace {

std::string Path(const std::string& name) {
  return absl::StrCat(::testing::TempDir(), "/sherd_", getpid(), "_", name);
}

std::string Contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The report of `why`, and the time it bears.
std::pair<std::string, int64_t> Written(const absl::Status& why) {
  const std::string path = Path("error.json");
  EXPECT_TRUE(WriteErrorFile(path, why).ok());
  std::string text = Contents(path);
  unlink(path.c_str());
  const std::string before = "\"timestamp\":\"";
  const size_t begin = text.find(before) + before.size();
  const size_t end = text.find('"', begin);
  const int64_t time = std::stoll(text.substr(begin, end - begin));
  return {text.replace(begin, end - begin, "T"), time};
}

TEST(ErrorFile, HasTheFormThatTheAgentReads) {
  const auto [text, time] = Written(absl::InternalError("a \"quoted\"\nline"));
  EXPECT_EQ(text,
            "{\"message\":{\"message\":\"INTERNAL: a \\\"quoted\\\"\\u000aline\",\"extraInfo\":{"
            "\"py_callstack\":\"a \\\"quoted\\\"\\u000aline\",\"timestamp\":\"T\"}}}\n");
}

TEST(ErrorFile, IsDatedLaterWhenAnotherRankFailedFirst) {
  // The agent takes the earliest for the first; its clock has whole seconds.
  for (const absl::Status& why :
       {absl::AbortedError("rank 1 aborted"), absl::UnavailableError("lost rank 1"),
        absl::DeadlineExceededError("rank 1 did not call it"), absl::CancelledError("stopped")}) {
    EXPECT_TRUE(FailedElsewhere(why));
    const int64_t before = absl::ToUnixSeconds(absl::Now());
    const int64_t time = Written(why).second;
    EXPECT_GE(time, before + 1);
    EXPECT_LE(time, absl::ToUnixSeconds(absl::Now()) + 1);
  }
  EXPECT_FALSE(FailedElsewhere(absl::InvalidArgumentError("the labels have another shape")));
  const int64_t before = absl::ToUnixSeconds(absl::Now());
  const int64_t time = Written(absl::InvalidArgumentError("the labels")).second;
  EXPECT_GE(time, before);
  EXPECT_LE(time, absl::ToUnixSeconds(absl::Now()));
}

TEST(ErrorFile, IsNotWrittenWithoutAnAgent) {
  EXPECT_TRUE(WriteErrorFile("", absl::InternalError("x")).ok());
}

TEST(JsonText, EscapesWhatJsonDoesNotAllow) {
  EXPECT_EQ(JsonQuoted("plain"), "\"plain\"");
  EXPECT_EQ(JsonQuoted("\\ \" \t\x01"), "\"\\\\ \\\" \\u0009\\u0001\"");
  EXPECT_EQ(JsonQuoted("\xc3\xa9"), "\"\xc3\xa9\"");
  EXPECT_EQ(JsonQuoted("a\xff z"), "\"a\\ufffd z\"");
}

}  // namespace
}  // namespace sherd
