#include "llm/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "llm/escape.h"
#include "sherd/runtime/base/new_file.h"
#include "sherd/runtime/io/json.h"

namespace llm {

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Create(const std::string& out) {
  const std::filesystem::path folder(out);
  for (const char* name : {"metrics.jsonl", "report.html"}) {
    std::error_code ignored;
    if (std::filesystem::exists(folder / name, ignored)) {
      return absl::AlreadyExistsError(absl::StrCat("--out ", out, " already holds a run (", name,
                                                   "); name another folder, remove it, or go on "
                                                   "with it by --resume"));
    }
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out ", out, " cannot be made a folder: ", error.message()));
  }
  const std::string path = (folder / "metrics.jsonl").string();
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " cannot be written: ", std::strerror(errno)));
  }
  return std::unique_ptr<MetricsWriter>(new MetricsWriter(path, file));
}

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Resume(
    const std::string& out, int64_t step, std::vector<StepRecord>& kept) {
  const std::filesystem::path folder(out);
  const std::string path = (folder / "metrics.jsonl").string();
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    std::ifstream in(path, std::ios::binary);
    std::string line, text;
    while (static_cast<int64_t>(kept.size()) < step && std::getline(in, line)) {
      const absl::StatusOr<StepRecord> record = ParseMetricsLine(line);
      const auto due = static_cast<int64_t>(kept.size()) + 1;
      if (!record.ok() || record->step != due || in.eof()) {
        return absl::DataLossError(absl::StrCat(path, ":", due, ": no line of step ", due));
      }
      kept.push_back(*record);
      text += line + "\n";
    }
    in.close();
    if (static_cast<int64_t>(kept.size()) < step) {
      return absl::DataLossError(
          absl::StrCat(path, " has ", kept.size(), " steps, the saved state ", step));
    }
    if (::access(path.c_str(), W_OK) != 0) {
      return absl::PermissionDeniedError(
          absl::StrCat(path, " cannot be written: ", std::strerror(errno)));
    }
    std::unique_ptr<MetricsWriter> writer(new MetricsWriter(path, -1));
    writer->kept_ = std::move(text);
    return writer;
  }
  if (step > 0) {
    return absl::DataLossError(
        absl::StrCat(path, " is missing beside the saved state of step ", step));
  }
  return Create(out);
}

absl::Status MetricsWriter::Settle() {
  if (!kept_) return absl::OkStatus();
  absl::StatusOr<sherd::NewFile> file = sherd::NewFile::Create(path_);
  if (!file.ok()) return file.status();
  if (absl::Status written = file->Append(*kept_); !written.ok()) return written;
  if (absl::Status published = file->Publish(); !published.ok()) return published;
  std::error_code ignored;
  std::filesystem::remove(std::filesystem::path(path_).parent_path() / "report.html", ignored);
  file_ = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file_ < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path_, " cannot be written: ", std::strerror(errno)));
  }
  kept_.reset();
  return absl::OkStatus();
}

MetricsWriter::~MetricsWriter() {
  if (file_ >= 0) ::close(file_);
}

absl::Status MetricsWriter::Write(const StepRecord& record) {
  if (absl::Status settled = Settle(); !settled.ok()) return settled;
  const std::string line = MetricsLine(record) + "\n";
  for (std::string_view rest = line; !rest.empty();) {
    const ssize_t written = ::write(file_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      return absl::DataLossError(
          absl::StrCat(path_, ": step ", record.step, " is not written: ", std::strerror(errno)));
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

std::string MetricsLine(const StepRecord& r) {
  std::string line = absl::StrCat("{\"step\": ", r.step, ", \"loss\": ", JsonNumber(r.loss));
  if (r.z_loss) absl::StrAppend(&line, ", \"z_loss\": ", JsonNumber(*r.z_loss));
  if (r.validation_loss) {
    absl::StrAppend(&line, ", \"validation_loss\": ", JsonNumber(*r.validation_loss));
  }
  if (!r.measures.empty()) {
    const auto member = [](std::string* out, const std::pair<const std::string, double>& measure) {
      absl::StrAppend(out, JsonString(measure.first), ": ", JsonNumber(measure.second));
    };
    absl::StrAppend(&line, ", \"held_out\": {", absl::StrJoin(r.measures, ", ", member), "}");
  }
  absl::StrAppend(&line, ", \"gradient_norm\": ", JsonNumber(r.gradient_norm),
                  ", \"learning_rate\": ", JsonNumber(r.learning_rate),
                  ", \"samples\": ", r.samples, ", \"micro_batches\": ", r.micro_batches,
                  ", \"scaled_by\": \"window\", \"tokens\": ", r.tokens,
                  ", \"tokens_per_second\": ", JsonNumber(r.tokens_per_second),
                  ", \"peak_bytes\": ", r.peak_bytes, ", \"seconds\": ", JsonNumber(r.seconds),
                  "}");
  return line;
}

namespace {

std::optional<double> NumberOf(const sherd::Json& json) {
  if (const auto* const integer = std::get_if<int64_t>(&json.value)) {
    return static_cast<double>(*integer);
  }
  if (const auto* const number = std::get_if<double>(&json.value)) return *number;
  return std::nullopt;
}

std::map<std::string, double> MeasuresOf(const sherd::JsonObject& line) {
  std::map<std::string, double> measures;
  const auto found = line.find("held_out");
  if (found == line.end()) return measures;
  if (const auto* const object = std::get_if<sherd::JsonObject>(&found->second.value)) {
    for (const auto& [name, json] : *object) {
      if (const std::optional<double> value = NumberOf(json)) measures[name] = *value;
    }
  }
  return measures;
}

}  // namespace

absl::StatusOr<StepRecord> ParseMetricsLine(std::string_view line) {
  const absl::StatusOr<sherd::Json> json = sherd::ParseJson(line);
  if (!json.ok()) return json.status();
  const auto* const object = std::get_if<sherd::JsonObject>(&json->value);
  if (object == nullptr) return absl::InvalidArgumentError("is no object");
  std::string missing;
  const auto real = [&](const char* key) -> std::optional<double> {
    const auto found = object->find(key);
    return found != object->end() ? NumberOf(found->second) : std::nullopt;
  };
  const auto needed = [&](const char* key) {
    const std::optional<double> value = real(key);
    if (!value) missing = key;
    return value.value_or(0.0);
  };
  const auto count = [&](const char* key) { return static_cast<int64_t>(needed(key)); };
  const StepRecord record = {.step = count("step"),
                             .loss = needed("loss"),
                             .z_loss = real("z_loss"),
                             .validation_loss = real("validation_loss"),
                             .measures = MeasuresOf(*object),
                             .gradient_norm = needed("gradient_norm"),
                             .learning_rate = needed("learning_rate"),
                             .samples = count("samples"),
                             .micro_batches = count("micro_batches"),
                             .tokens = count("tokens"),
                             .tokens_per_second = needed("tokens_per_second"),
                             .peak_bytes = count("peak_bytes"),
                             .seconds = needed("seconds")};
  if (missing.empty()) return record;
  return absl::InvalidArgumentError(absl::StrCat("has no number for ", missing));
}

}  // namespace llm
