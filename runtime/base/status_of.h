#pragma once

#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sherd {

// Calls `body` and returns what it threw as a value; OK if it threw nothing. Never throws.
//
// For programs that are built without exceptions, or that hand errors on as values: what the
// functions of a step throw (see error.h) becomes their absl::Status. The families in
// sherd::status, one function for each call of the engine, are made of this.
// Errors: the status of a sherd::Error; kResourceExhausted for std::bad_alloc; kUnknown with the
//   text of any other exception. What `body` had changed by then is as its own contract says.
// Threads: safe.
absl::Status StatusOf(absl::FunctionRef<void()> body) noexcept;

// The same for a function with a result, which may be of any type that can be moved.
template <typename F>
auto StatusOrOf(F&& function) noexcept -> absl::StatusOr<decltype(function())> {
  std::optional<decltype(function())> result;
  absl::Status status = StatusOf([&] { result.emplace(function()); });
  if (!status.ok()) return status;
  return *std::move(result);
}

}  // namespace sherd
