#pragma once

#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

// Says where an error arose. Empty fields are left out of the message.
struct ErrorContext {
  std::string op;           // "matmul", "all_gather", ...
  std::string module_path;  // "model.blocks.3.attention"
  CallSite site;            // the line of the caller's code
};

// What every function of a training step throws.
//
// Carries an absl::Status whose message is complete: "[op] what is wrong (in module path) at
// file:line". Copying is cheap and never throws. Where failure is an expected answer (launch,
// files, configuration) functions return absl::StatusOr instead and throw nothing.
class Error : public std::exception {
 public:
  // Composes the text at once, so that what() cannot fail later.
  Error(absl::StatusCode code, std::string_view message, ErrorContext context = {});
  // The error of another library's answer. REQUIRES: status is not OK.
  explicit Error(const absl::Status& status, ErrorContext context = {});

  // The whole text. Ownership: valid while this error or a copy of it lives.
  const char* what() const noexcept override;
  // For callers that hand failures on as values; its message is what().
  const absl::Status& status() const noexcept { return data_->status; }
  absl::StatusCode code() const noexcept { return data_->status.code(); }
  const ErrorContext& context() const noexcept { return data_->context; }
  // The text without op, module path and call site.
  const std::string& message() const noexcept { return data_->message; }

  // Returns this error with those fields of `context` filled in that are still empty here.
  Error With(const ErrorContext& context) const;

 private:
  struct Data {
    absl::Status status;
    std::string message;
    ErrorContext context;
    std::string what;
  };
  std::shared_ptr<const Data> data_;
};

// Throw an Error. Out of line, so that headers compile with -fno-exceptions.
[[noreturn]] void ThrowError(Error error);
[[noreturn]] void ThrowInvalidArgument(std::string_view message, ErrorContext context = {});
[[noreturn]] void ThrowFailedPrecondition(std::string_view message, ErrorContext context = {});
// Throws unless `status` is OK.
void ThrowIfError(const absl::Status& status, ErrorContext context = {});

namespace internal {
[[noreturn]] void CheckFailed(const char* condition, std::string_view message, CallSite site);
}  // namespace internal

}  // namespace sherd

// Throws an Error of code kInternal when `condition` is false. For bugs of this library only: what
// a caller can get wrong is reported by an error that names the operands.
#define SHERD_CHECK(condition, message)                                               \
  do {                                                                                \
    if (!(condition)) [[unlikely]]                                                    \
      ::sherd::internal::CheckFailed(#condition, message, ::sherd::CallSite::Here()); \
  } while (false)
