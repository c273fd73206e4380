#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sherd {

// A small table of strings that all ranks of a job share: how they find each other.
//
// Not for bulk data: keys up to kMaxKeyBytes, values up to kMaxValueBytes, a fraction of a
// millisecond per call. Operations are atomic and ordered as one process would see them.
// Threads: safe; a blocking call holds up no other. Ownership: values are copies.
// Errors: kUnavailable when the server is gone, kInvalidArgument for a key or value out of limits,
//   kDeadlineExceeded from the blocking calls.
class Store {
 public:
  static constexpr int64_t kMaxKeyBytes = 4096;
  static constexpr int64_t kMaxValueBytes = int64_t{1} << 20;

  virtual ~Store() = default;

  virtual absl::Status Set(std::string_view key, std::string_view value) = 0;
  // Returns the value, waiting until the key exists. Errors: kDeadlineExceeded naming the key.
  virtual absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) = 0;
  // Returns the value, or nothing when the key does not exist now.
  virtual absl::StatusOr<std::optional<std::string>> TryGet(std::string_view key) = 0;
  // Adds to a decimal number, 0 when absent, and returns the sum.
  // Errors: kInvalidArgument when the value is no number (not found by every server).
  virtual absl::StatusOr<int64_t> Add(std::string_view key, int64_t delta) = 0;
  // Sets the key to `desired` if its value is `expected`, or if it is absent and `expected` is
  // empty. Returns the value after that, `expected` when the key is absent and stays so.
  virtual absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                                 std::string_view desired) = 0;
  // Returns whether the key existed.
  virtual absl::StatusOr<bool> Delete(std::string_view key) = 0;

  // Returns when all keys exist. Errors: kDeadlineExceeded naming the first that does not.
  absl::Status Wait(std::span<const std::string> keys, absl::Duration timeout);
};

// A table in this process, for ranks that are threads. Every rank is given the same object.
std::shared_ptr<Store> MakeMemoryStore();

// A view of `store` whose keys all begin with `prefix`: a name space of its own.
std::shared_ptr<Store> MakePrefixStore(std::shared_ptr<Store> store, std::string prefix);

}  // namespace sherd
