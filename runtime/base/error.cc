#include "sherd/runtime/base/error.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sherd {
namespace {

std::string Compose(std::string_view message, const ErrorContext& context) {
  std::string text;
  if (!context.op.empty()) absl::StrAppend(&text, "[", context.op, "] ");
  text.append(message);
  if (!context.module_path.empty()) absl::StrAppend(&text, " (in ", context.module_path, ")");
  if (context.site.line > 0)
    absl::StrAppend(&text, " at ", context.site.file, ":", context.site.line);
  return text;
}

}  // namespace

Error::Error(absl::StatusCode code, std::string_view message, ErrorContext context) {
  auto data = std::make_shared<Data>();
  data->message = std::string(message);
  data->what = Compose(message, context);
  data->status = absl::Status(code, data->what);
  data->context = std::move(context);
  data_ = std::move(data);
}

Error::Error(const absl::Status& status, ErrorContext context)
    : Error(status.code(), std::string(status.message()), std::move(context)) {}

const char* Error::what() const noexcept { return data_->what.c_str(); }

Error Error::With(const ErrorContext& context) const {
  ErrorContext merged = data_->context;
  if (merged.op.empty()) merged.op = context.op;
  if (merged.module_path.empty()) merged.module_path = context.module_path;
  if (merged.site.line == 0) merged.site = context.site;
  return Error(code(), data_->message, std::move(merged));
}

void ThrowError(Error error) { throw error; }

void ThrowInvalidArgument(std::string_view message, ErrorContext context) {
  throw Error(absl::StatusCode::kInvalidArgument, message, std::move(context));
}

void ThrowFailedPrecondition(std::string_view message, ErrorContext context) {
  throw Error(absl::StatusCode::kFailedPrecondition, message, std::move(context));
}

void ThrowIfError(const absl::Status& status, ErrorContext context) {
  if (!status.ok()) throw Error(status, std::move(context));
}

namespace internal {

void CheckFailed(const char* condition, std::string_view message, CallSite site) {
  throw Error(absl::StatusCode::kInternal,
              absl::StrCat("internal check failed: ", condition, ": ", std::string(message)),
              {.site = site});
}

}  // namespace internal
}  // namespace sherd
