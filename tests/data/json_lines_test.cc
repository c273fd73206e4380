#include "data/json_lines.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/data/files.h"

namespace data {
namespace {

using Ids = std::vector<int64_t>;

// The first error of reading lines and three of their keys.
std::string LinesError(const std::string& text) {
  const auto lines = ReadJsonLines(WriteFile("x.jsonl", text));
  if (!lines.ok()) return std::string(lines.status().message());
  for (const JsonLine& line : *lines) {
    for (const char* key : {"prompt", "chosen", "rejected"}) {
      const auto read = line.Text(key);
      if (!read.ok()) return std::string(read.status().message());
    }
  }
  return "no error";
}

std::string SamplesError(const std::string& text) {
  const auto samples = ReadSamples(WriteFile("x.jsonl", text), 10);
  return samples.ok() ? "no error" : std::string(samples.status().message());
}

TEST(JsonLinesTest, ReadsObjectsAndPassesOverBlankLines) {
  const auto lines =
      ReadJsonLines(WriteFile("a.jsonl",
                              "{\"prompt\": \"a\\n\", \"chosen\":\"\\u00e9\\ud83d\\ude00\"}\r\n"
                              "\n"
                              "{\"id\":[1,{\"x\":null}],\"prompt\":\"\"}"));
  ASSERT_TRUE(lines.ok()) << lines.status();
  ASSERT_EQ(lines->size(), 2u);
  EXPECT_EQ(*(*lines)[0].Text("prompt"), "a\n");
  EXPECT_EQ(*(*lines)[0].Text("chosen"), "\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_FALSE((*lines)[1].Has("chosen"));
  EXPECT_EQ(*(*lines)[1].Text("prompt"), "");
  EXPECT_EQ((*lines)[1].number(), 3);
}

TEST(JsonLinesTest, ReadsSamplesOfBothKinds) {
  const auto samples = ReadSamples(
      WriteFile("a.jsonl", "{\"text\":\"t\"}\n{\"tokens\":[0,9],\"labels\":[-100,3]}\n"), 10);
  ASSERT_TRUE(samples.ok()) << samples.status();
  ASSERT_EQ(samples->size(), 2u);
  EXPECT_EQ((*samples)[0].text, "t");
  EXPECT_EQ((*samples)[1].tokens, (Ids{0, 9}));
  EXPECT_EQ((*samples)[1].labels, (Ids{-100, 3}));
  EXPECT_EQ((*samples)[1].line, 2);
}

TEST(JsonLinesTest, ErrorsNameFileLineAndKey) {
  const std::string good = "{\"prompt\":\"p\",\"chosen\":\"c\",\"rejected\":\"r\"}\n";
  EXPECT_PRED2(Contains, LinesError(good + "\n{\"prompt\":\"p\",\"chosen\":\"c\"}\n"),
               "x.jsonl:3: key \"rejected\" is missing");
  EXPECT_PRED2(Contains, LinesError(good + "{\"prompt\":\"p\",\"chosen\":7,\"rejected\":\"r\"}"),
               "x.jsonl:2: \"chosen\" is an integer, not a string");
  EXPECT_PRED2(Contains, LinesError(good + "[1]"), "x.jsonl:2: is an array, not an object");
  EXPECT_PRED2(Contains, LinesError(good + "{\"prompt\": "), "x.jsonl:2: column 12: ");
  EXPECT_PRED2(Contains, LinesError("{\"a\":1,\"a\":2}"),
               "x.jsonl:1: column 8: key \"a\" comes twice");
}

TEST(JsonLinesTest, ErrorsOfSamplesNameTheValue) {
  EXPECT_PRED2(Contains, SamplesError("{}"), ":1: has neither \"text\" nor \"tokens\"");
  EXPECT_PRED2(Contains, SamplesError("{\"text\":\"a\",\"tokens\":[1]}"), "both");
  EXPECT_PRED2(Contains, SamplesError("{\"tokens\":[1]}"), "key \"labels\" is missing");
  EXPECT_PRED2(Contains, SamplesError("{\"tokens\":[1,10],\"labels\":[1,1]}"),
               "\"tokens\"[1] is 10, outside [0, 10)");
  EXPECT_PRED2(Contains, SamplesError("{\"tokens\":[1],\"labels\":[-1]}"), "\"labels\"[0] is -1");
  EXPECT_PRED2(Contains, SamplesError("{\"tokens\":[-100],\"labels\":[1]}"),
               "\"tokens\"[0] is -100");
  EXPECT_PRED2(Contains, SamplesError("{\"tokens\":[1,2],\"labels\":[1]}"), "2 \"tokens\" but 1");
  EXPECT_PRED2(Contains, SamplesError("{\"tokens\":[1.5],\"labels\":[1]}"), "[0] is a number");
  EXPECT_PRED2(Contains, SamplesError("{\"tokens\":[99999999999999999999],\"labels\":[1]}"),
               "[0] is a number");
  EXPECT_PRED2(Contains, SamplesError("{\"tokens\":[],\"labels\":[]}"), "is empty");
}

TEST(JsonLinesTest, BadUtf8IsRefused) {
  for (const char* bytes :
       {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82", "\x80"}) {
    EXPECT_PRED2(Contains, SamplesError("{\"text\":\"ab" + std::string(bytes) + "\"}"),
                 "x.jsonl:1: column 12: bytes that are not UTF-8");
  }
  EXPECT_PRED2(Contains, SamplesError("{\"text\":\"\\ud800x\"}"), "half a surrogate pair");
}

TEST(JsonLinesTest, FilesWithoutObjectsAreRefused) {
  EXPECT_PRED2(Contains, LinesError(""), "x.jsonl is empty");
  EXPECT_PRED2(Contains, LinesError("\n \r\n"), "x.jsonl has no object");
  EXPECT_EQ(ReadJsonLines("/nowhere/x.jsonl").status().code(), absl::StatusCode::kNotFound);
  EXPECT_PRED2(Contains, std::string(ReadJsonLines("/tmp").status().message()), "is a folder");
}

TEST(JsonTest, RefusesWhatIsNoJson) {
  for (const char* text : {"",
                           "01",
                           "1.",
                           "-",
                           "1e",
                           "+1",
                           "nul",
                           "tru e",
                           "\"\\x\"",
                           "\"\\u12g4\"",
                           "\"\\u+123\"",
                           "\"a",
                           "\"\t\"",
                           "[1,]",
                           "[1 2]",
                           "{\"a\"}",
                           "{a:1}",
                           "{\"a\":1,}",
                           "1 1",
                           "\xEF\xBB\xBF"
                           "1"}) {
    EXPECT_FALSE(sherd::ParseJson(text).ok()) << text;
  }
  EXPECT_FALSE(sherd::ParseJson(std::string(100000, '[')).ok());
  EXPECT_TRUE(sherd::ParseJson(std::string(64, '[') + std::string(64, ']')).ok());
  EXPECT_FALSE(sherd::ParseJson(std::string(65, '[') + std::string(65, ']')).ok());
}

TEST(JsonTest, ReadsNumbers) {
  EXPECT_EQ(std::get<int64_t>(sherd::ParseJson(" -9223372036854775808 ")->value), INT64_MIN);
  EXPECT_EQ(std::get<double>(sherd::ParseJson("-0.25e1")->value), -2.5);
  EXPECT_EQ(std::get<int64_t>(sherd::ParseJson("0")->value), 0);
  EXPECT_EQ(std::get<double>(sherd::ParseJson("1e308")->value), 1e308);
  EXPECT_EQ(std::get<double>(sherd::ParseJson("1e-400")->value), 0.0);
  EXPECT_EQ(sherd::ParseJson("[1, -1e999]").status().message(),
            "column 5: a number beyond the range of double");
  EXPECT_EQ(sherd::ParseJson("[false]")->kind(), "an array");
}

}  // namespace
}  // namespace data
