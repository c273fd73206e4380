#include "sherd/runtime/base/status_of.h"

#include <exception>
#include <new>

#include "sherd/runtime/base/error.h"

namespace sherd {
namespace {

absl::Status OfException() {
  try {
    throw;
  } catch (const Error& error) {
    return error.status();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const std::exception& error) {
    return absl::UnknownError(error.what());
  } catch (...) {
    return absl::UnknownError("an exception of unknown type");
  }
}

}  // namespace

absl::Status StatusOf(absl::FunctionRef<void()> body) noexcept {
  try {
    body();
    return absl::OkStatus();
  } catch (...) {
    try {
      return OfException();
    } catch (...) {
      return absl::Status(absl::StatusCode::kResourceExhausted, "");  // allocates nothing
    }
  }
}

}  // namespace sherd
