// Traces are JSON that viewers open: one line by hand, hostile names, real streams, merged files.

#include "sherd/shard/trace.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sherd/runtime/core/events.h"
#include "sherd/runtime/core/stream.h"
#include "tests/shard/json_reader.h"

namespace sherd::testing {
namespace {

// Times of the records are given, not measured.
int64_t NoClock() { return 0; }

std::string TraceOf(const EventLog& log) {
  std::ostringstream out;
  WriteChromeTrace(log, out);
  return out.str();
}

std::string FileText(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string TempFile(const std::string& name, const std::string& text = "") {
  const std::string path = ::testing::TempDir() + "sherd_trace_test_" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

TEST(TraceTest, GoldenByHand) {
  EventLog log({.rank = 2, .clock = NoClock});
  const int unit = log.Intern("block0");
  log.Add({.kind = EventKind::kCollective,
           .point = EventPoint::kEnd,
           .lane = EventLane::kGather,
           .phase = EventPhase::kForward,
           .op = EventOp::kAllGather,
           .unit = unit,
           .sequence = 3,
           .bytes = 4096,
           .enqueue_ns = 1000000,
           .start_ns = 1002500,
           .end_ns = 3002507});
  log.Add({.kind = EventKind::kReshard, .unit = unit, .start_ns = 4000000, .end_ns = 4000000});
  log.Add({.kind = EventKind::kScope,
           .point = EventPoint::kBegin,
           .phase = EventPhase::kBackward,
           .unit = unit,
           .start_ns = 5000001});
  log.Add({.kind = EventKind::kCollective,
           .point = EventPoint::kEnqueue,
           .lane = EventLane::kReduce,
           .phase = EventPhase::kBackward,
           .op = EventOp::kReduceScatter,
           .unit = unit,
           .sequence = 1,
           .bytes = 64,
           .enqueue_ns = 6000000});
  const std::string text = TraceOf(log);
  const std::string after_head = text.substr(text.find('\n') + 1);
  EXPECT_EQ(after_head,
            R"({"ts":0.000,"ph":"M","pid":2,"tid":0,"name":"process_name","args":{"name":"rank 2"}},
{"ts":0.000,"ph":"M","pid":2,"tid":0,"name":"thread_name","args":{"name":"compute"}},
{"ts":0.000,"ph":"M","pid":2,"tid":1,"name":"thread_name","args":{"name":"gather"}},
{"ts":0.000,"ph":"M","pid":2,"tid":2,"name":"thread_name","args":{"name":"reduce"}},
{"ts":2.500,"ph":"X","dur":2000.007,"pid":2,"tid":1,"name":"all_gather block0","cat":"collective","args":{"unit":"block0","phase":"forward","sequence":3,"bytes":4096,"queued_us":2.500}},
{"ts":3000.000,"ph":"i","s":"t","pid":2,"tid":0,"name":"reshard block0","cat":"reshard","args":{"unit":"block0","phase":"","sequence":0,"bytes":0}},
{"ts":4000.001,"ph":"B","pid":2,"tid":0,"name":"backward block0","cat":"scope","args":{"unit":"block0","phase":"backward","sequence":0,"bytes":0}},
{"ts":5000.000,"ph":"i","s":"t","pid":2,"tid":2,"name":"queued reduce_scatter block0","cat":"collective","args":{"unit":"block0","phase":"backward","sequence":1,"bytes":64}}
]}
)");
  EXPECT_EQ(JsonReader(text).Read()["traceEvents"].items.size(), 8u);
}

TEST(TraceTest, NamesOfAnyBytesStayJson) {
  const std::pair<std::string, std::string> names[] = {
      {"a \"quoted\" \\ name", "a \"quoted\" \\ name"},
      {"line\nand\ttab\x01", "line\nand\ttab\x01"},
      {"caf\xc3\xa9 \xf0\x9f\x9a\x80", "caf\xc3\xa9 \xf0\x9f\x9a\x80"},
      {"cut \xc3", "cut \\ufffd"},                                        // an incomplete sequence
      {"\xff\xfe-\x80", "\\ufffd\\ufffd-\\ufffd"},                        // bytes no sequence has
      {"\xc0\xaf \xed\xa0\x80", "\\ufffd\\ufffd \\ufffd\\ufffd\\ufffd"},  // overlong, surrogate
      {"\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"},               // above 10ffff
  };
  for (const auto& [name, shown] : names) {
    EventLog log;
    log.Instant({.kind = EventKind::kReshard, .unit = log.Intern(name)});
    const Json trace = JsonReader(TraceOf(log)).Read();
    EXPECT_EQ(trace["traceEvents"].items.back()["args"]["unit"].text, shown);
  }
}

TEST(TraceTest, EmptyLogIsATrace) {
  EXPECT_EQ(JsonReader(TraceOf(EventLog())).Read()["traceEvents"].items.size(), 4u);
}

// Nested scopes on this thread, collectives on two streams that overlap them, all ranks in one
// file: on each thread of the trace spans lie within each other or apart.
TEST(TraceTest, LanesOfRealStreamsNest) {
  EventLog first({.rank = 0});
  EventLog second({.rank = 1});
  for (EventLog* log : {&first, &second}) {
    Stream gather("gather");
    Stream reduce("reduce");
    const Event collective = {.kind = EventKind::kCollective, .unit = log->Intern("block")};
    for (int step = 0; step < 20; ++step) {
      const EventSpan outer(log, {.kind = EventKind::kScope, .phase = EventPhase::kForward});
      Work last;
      for (Stream* stream : {&gather, &reduce, &gather}) {
        Event event = collective;
        event.lane = stream == &gather ? EventLane::kGather : EventLane::kReduce;
        event = log->Enqueue(event);
        last = stream->Enqueue({}, [log, event] { const EventSpan running(log, event); });
        const EventSpan inner(log, {.kind = EventKind::kScope, .phase = EventPhase::kBackward});
      }
      const EventSpan waiting(log, {.kind = EventKind::kWait});
      last.Wait();
    }
  }
  std::ostringstream out;
  const EventLog* logs[] = {&first, &second};
  WriteChromeTrace(logs, out);
  const Json trace = JsonReader(out.str()).Read();
  std::map<std::pair<double, double>, std::vector<double>> ends;  // of the spans around
  int spans = 0;
  for (const Json& event : trace["traceEvents"].items) {
    if (event["ph"].text != "X") continue;
    ++spans;
    std::vector<double>& around = ends[{event["pid"].number, event["tid"].number}];
    const double start = event["ts"].number;
    const double end = start + event["dur"].number;
    while (!around.empty() && around.back() <= start + 1e-4) around.pop_back();
    ASSERT_TRUE(around.empty() || end <= around.back() + 1e-4) << event["name"].text;
    around.push_back(end);
  }
  EXPECT_EQ(spans, 2 * 20 * (1 + 3 + 3 + 1));
  EXPECT_EQ(ends.size(), 6u) << "three threads for each of two ranks";
}

TEST(TraceTest, MergedFilesShareOneTime) {
  const std::string head = R"({"displayTimeUnit":"ns","otherData":{"base_ns":")";
  const auto file = [&](int rank, const std::string& base, const std::string& time) {
    const std::string pid = std::to_string(rank);
    return TempFile("in" + pid, head + base + "\"},\"traceEvents\":[\n{\"ts\":0.000,\"ph\":\"M\"," +
                                    "\"pid\":" + pid + "},\n{\"ts\":" + time +
                                    ",\"ph\":\"X\",\"pid\":" + pid + "}\n]}\n");
  };
  // Begun 2.5 us apart; the later one's event is 1 us after its base.
  const std::vector<std::string> in = {file(0, "1700000000000003500", "1.000"),
                                       file(1, "1700000000000001000", "0.750")};
  const std::string merged = TempFile("merged");
  ASSERT_TRUE(MergeChromeTraces(in, merged).ok());
  EXPECT_EQ(FileText(merged), head + R"(1700000000000001000"},"traceEvents":[
{"ts":0.000,"ph":"M","pid":0},
{"ts":3.500,"ph":"X","pid":0},
{"ts":0.000,"ph":"M","pid":1},
{"ts":0.750,"ph":"X","pid":1}
]}
)");
}

TEST(TraceTest, MergeTakesWhatWasWritten) {
  std::vector<std::string> paths;
  for (int rank = 0; rank < 3; ++rank) {
    EventLog log({.rank = rank});
    log.Instant({.kind = EventKind::kReshard});
    paths.push_back(TempFile("rank" + std::to_string(rank)));
    ASSERT_TRUE(WriteChromeTrace(log, paths.back()).ok());
  }
  const std::string merged = TempFile("all");
  ASSERT_TRUE(MergeChromeTraces(paths, merged).ok());
  const Json trace = JsonReader(FileText(merged)).Read();
  EXPECT_EQ(trace["traceEvents"].items.size(), 3u * 5u);
  // And what was merged can be merged.
  const std::vector<std::string> again = {merged, paths[0]};
  ASSERT_TRUE(MergeChromeTraces(again, TempFile("again")).ok());
}

TEST(TraceTest, MergeNamesTheFileThatIsWrong) {
  EventLog log;
  log.Instant({.kind = EventKind::kReshard});
  const std::string good = TempFile("good", TraceOf(log));
  const std::string text = TraceOf(log);
  const std::string foreign = TempFile("foreign", "[{\"ts\":1}]");
  const std::string cut = TempFile("cut", text.substr(0, text.size() - 3));
  const std::string half = TempFile("half", text.substr(0, text.size() - 20));
  std::string strange_line = text;
  strange_line.replace(strange_line.find("{\"ts\":0.000"), 11, "{\"ts\":zero,");
  const std::string strange = TempFile("strange", strange_line);
  const std::string merged = TempFile("untouched", "as before");
  for (const std::string& bad : {foreign, cut, half, strange, std::string("/no/such/trace")}) {
    const std::vector<std::string> paths = {good, bad};
    const absl::Status status = MergeChromeTraces(paths, merged);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(std::string(status.message()).find(bad), std::string::npos) << status.message();
    EXPECT_EQ(FileText(merged), "as before");
  }
}

TEST(TraceTest, UnwritablePathIsNamed) {
  const absl::Status status = WriteChromeTrace(EventLog(), std::string("/no/such/folder/trace"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(std::string(status.message()).find("/no/such/folder/trace"), std::string::npos);
}

}  // namespace
}  // namespace sherd::testing
