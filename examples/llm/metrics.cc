#include "llm/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "llm/escape.h"

namespace llm {

absl::StatusOr<std::unique_ptr<MetricsWriter>> MetricsWriter::Create(const std::string& out) {
  const std::filesystem::path folder(out);
  for (const char* name : {"metrics.jsonl", "report.html"}) {
    std::error_code ignored;
    if (std::filesystem::exists(folder / name, ignored)) {
      return absl::AlreadyExistsError(absl::StrCat("--out ", out, " already holds a run (", name,
                                                   "); name another folder or remove it"));
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

MetricsWriter::~MetricsWriter() { ::close(file_); }

absl::Status MetricsWriter::Write(const StepRecord& record) {
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
  absl::StrAppend(&line, ", \"gradient_norm\": ", JsonNumber(r.gradient_norm),
                  ", \"learning_rate\": ", JsonNumber(r.learning_rate),
                  ", \"samples\": ", r.samples, ", \"micro_batches\": ", r.micro_batches,
                  ", \"scaled_by\": \"window\", \"tokens\": ", r.tokens,
                  ", \"tokens_per_second\": ", JsonNumber(r.tokens_per_second),
                  ", \"peak_bytes\": ", r.peak_bytes, ", \"seconds\": ", JsonNumber(r.seconds),
                  "}");
  return line;
}

}  // namespace llm
