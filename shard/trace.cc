#include "sherd/shard/trace.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <limits>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "sherd/runtime/base/json_text.h"
#include "sherd/shard/timeline.h"

namespace sherd {
namespace {

constexpr EventLane kLanes[] = {EventLane::kCompute, EventLane::kGather, EventLane::kReduce};

// [Note: the form of a trace file]
// The first line names the base that the file's times count from, then comes one event a line, its
// time first, then the last line. So files are merged by lines, with their times moved to one base.
// Times since 1970 would lose their nanoseconds in viewers, which read them as doubles.
constexpr char kHead[] = "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"base_ns\":\"";
constexpr char kHeadEnd[] = "\"},\"traceEvents\":[";
constexpr char kTime[] = "{\"ts\":";
constexpr char kNameEvent[] = ",\"ph\":\"M\"";  // of a process or thread, at no time
constexpr char kTail[] = "]}";

// Microseconds with all nanoseconds, as traces have them.
std::string Micros(int64_t ns) {
  return absl::StrFormat("%s%d.%03d", ns < 0 ? "-" : "", std::abs(ns) / 1000, std::abs(ns) % 1000);
}

// The events of one log, one a line.
class TraceLines {
 public:
  TraceLines(const EventLog& log, int64_t base_ns, std::vector<std::string>* lines)
      : log_(log), shift_ns_(log.wall_offset_ns() - base_ns), lines_(lines) {}

  void Names() {
    Name("process_name", 0, absl::StrCat("rank ", log_.rank()));
    for (EventLane lane : kLanes)
      Name("thread_name", static_cast<int>(lane), std::string(NameOf(lane)));
  }
  void Span(const Event& event) {
    const bool instant = event.point == EventPoint::kInstant;
    Line(event, event.start_ns, instant ? "i\",\"s\":\"t" : "X", TitleOf(log_, event),
         instant ? "" : absl::StrCat(",\"dur\":", Micros(event.end_ns - event.start_ns)));
  }
  void Running(const Event& event) { Line(event, event.start_ns, "B", TitleOf(log_, event), ""); }
  void Queued(const Event& event) {
    Line(event, event.enqueue_ns, "i\",\"s\":\"t", "queued " + TitleOf(log_, event), "");
  }

 private:
  void Name(const char* what, int thread, const std::string& name) {
    lines_->push_back(absl::StrCat(kTime, "0.000", kNameEvent, ",\"pid\":", log_.rank(),
                                   ",\"tid\":", thread, ",\"name\":\"", what,
                                   "\",\"args\":{\"name\":", JsonQuoted(name), "}}"));
  }
  void Line(const Event& event, int64_t time_ns, const char* ph, const std::string& title,
            const std::string& more) {
    std::string args = absl::StrCat("\"unit\":", JsonQuoted(log_.NameOf(event.unit)),
                                    ",\"phase\":\"", std::string(NameOf(event.phase)),
                                    "\",\"sequence\":", event.sequence, ",\"bytes\":", event.bytes);
    if (event.enqueue_ns != 0 && event.start_ns != 0)
      absl::StrAppend(&args, ",\"queued_us\":", Micros(event.start_ns - event.enqueue_ns));
    lines_->push_back(absl::StrCat(
        kTime, Micros(time_ns + shift_ns_), ",\"ph\":\"", ph, "\"", more, ",\"pid\":", log_.rank(),
        ",\"tid\":", static_cast<int>(event.lane), ",\"name\":", JsonQuoted(title), ",\"cat\":\"",
        std::string(NameOf(event.kind)), "\",\"args\":{", args, "}}"));
  }

  const EventLog& log_;
  const int64_t shift_ns_;
  std::vector<std::string>* const lines_;
};

void WriteLines(int64_t base_ns, const std::vector<std::string>& lines, std::ostream& out) {
  out << kHead << base_ns << kHeadEnd << '\n';
  for (size_t i = 0; i < lines.size(); ++i)
    out << lines[i] << (i + 1 < lines.size() ? ",\n" : "\n");
  out << kTail << '\n';
}

absl::Status FileError(const char* what, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("cannot ", what, " the trace '", path, "': ", std::strerror(errno)));
}

template <typename Write>
absl::Status WriteFile(const std::string& path, const Write& write) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  write(file);
  file.close();
  return file ? absl::OkStatus() : FileError("write", path);
}

struct TraceFile {
  struct Line {
    int64_t time_ns = 0;
    std::string rest;  // from the comma after the time on
  };
  int64_t base_ns = 0;
  std::vector<Line> lines;
};

// Reads "{"ts":<micros>.<3 digits>,...}". Returns whether it was one.
bool ReadLine(std::string_view text, TraceFile::Line* line) {
  if (!text.empty() && text.back() == ',') text.remove_suffix(1);
  const size_t comma = text.find(',');
  if (text.substr(0, std::strlen(kTime)) != kTime || text.back() != '}' || comma == text.npos)
    return false;
  std::string digits(text.substr(std::strlen(kTime), comma - std::strlen(kTime)));
  if (digits.size() < 5 || digits[digits.size() - 4] != '.') return false;
  digits.erase(digits.size() - 4, 1);
  const char* end = digits.data() + digits.size();
  const auto time = std::from_chars(digits.data(), end, line->time_ns);
  line->rest = std::string(text.substr(comma));
  return time.ec == std::errc() && time.ptr == end;
}

absl::StatusOr<TraceFile> ReadTrace(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return FileError("read", path);
  const auto wrong = [&](const std::string& why) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", path, "' is not a trace of this library: ", why));
  };
  TraceFile file;
  std::string line;
  std::getline(in, line);
  if (line.rfind(kHead, 0) != 0) return wrong("its first line is another");
  const char* end = line.data() + line.size();
  const auto base = std::from_chars(line.data() + std::strlen(kHead), end, file.base_ns);
  if (base.ec != std::errc() ||
      std::string_view(base.ptr, static_cast<size_t>(end - base.ptr)) != kHeadEnd)
    return wrong("its first line is another");
  while (std::getline(in, line) && line != kTail) {
    if (!ReadLine(line, &file.lines.emplace_back()))
      return wrong(absl::StrCat("line ", file.lines.size() + 1, " is no event"));
  }
  if (line != kTail) return wrong("its end is cut off");
  return file;
}

}  // namespace

void WriteChromeTrace(std::span<const EventLog* const> logs, std::ostream& out) {
  std::vector<Timeline> timelines;
  int64_t base_ns = std::numeric_limits<int64_t>::max();
  for (const EventLog* log : logs) {
    const std::vector<Event> records = log->Read();
    timelines.push_back(MakeTimeline(records));
    for (const Event& e : records) {
      const int64_t first = e.enqueue_ns != 0 ? e.enqueue_ns : e.start_ns;
      if (first != 0) base_ns = std::min(base_ns, first + log->wall_offset_ns());
    }
  }
  if (base_ns == std::numeric_limits<int64_t>::max()) base_ns = 0;
  std::vector<std::string> lines;
  for (size_t i = 0; i < logs.size(); ++i) {
    TraceLines trace(*logs[i], base_ns, &lines);
    trace.Names();
    for (const Event& e : timelines[i].spans) trace.Span(e);
    for (const Event& e : timelines[i].running) trace.Running(e);
    for (const Event& e : timelines[i].queued) trace.Queued(e);
  }
  WriteLines(base_ns, lines, out);
}

void WriteChromeTrace(const EventLog& log, std::ostream& out) {
  const EventLog* one = &log;
  WriteChromeTrace({&one, 1}, out);
}

absl::Status WriteChromeTrace(const EventLog& log, const std::string& path) {
  return WriteFile(path, [&](std::ostream& out) { WriteChromeTrace(log, out); });
}

absl::Status MergeChromeTraces(std::span<const std::string> paths, const std::string& merged) {
  std::vector<TraceFile> files;
  int64_t base_ns = std::numeric_limits<int64_t>::max();
  for (const std::string& path : paths) {
    absl::StatusOr<TraceFile> file = ReadTrace(path);
    if (!file.ok()) return file.status();
    if (file->base_ns != 0) base_ns = std::min(base_ns, file->base_ns);
    files.push_back(*std::move(file));
  }
  if (base_ns == std::numeric_limits<int64_t>::max()) base_ns = 0;
  std::vector<std::string> lines;
  for (const TraceFile& file : files) {
    for (const TraceFile::Line& line : file.lines) {
      const bool name = line.rest.rfind(kNameEvent, 0) == 0;
      const int64_t time_ns = name ? 0 : line.time_ns + file.base_ns - base_ns;
      lines.push_back(absl::StrCat(kTime, Micros(time_ns), line.rest));
    }
  }
  return WriteFile(merged, [&](std::ostream& out) { WriteLines(base_ns, lines, out); });
}

}  // namespace sherd
