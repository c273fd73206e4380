#include "sherd/runtime/comm/store.h"

#include <charconv>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace sherd {
namespace {

absl::Status CheckSizes(std::string_view key, std::string_view value = {}) {
  if (key.empty() || static_cast<int64_t>(key.size()) > Store::kMaxKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a store key has ", key.size(), " bytes; allowed are 1 to ", Store::kMaxKeyBytes));
  }
  if (static_cast<int64_t>(value.size()) > Store::kMaxValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the value of store key '", std::string(key),
                                                   "' has ", value.size(), " bytes; allowed are ",
                                                   Store::kMaxValueBytes));
  }
  return absl::OkStatus();
}

std::chrono::steady_clock::time_point After(absl::Duration timeout) {
  constexpr absl::Duration kLongest = absl::Hours(24 * 365);
  return std::chrono::steady_clock::now() +
         absl::ToChronoNanoseconds(std::min(std::max(timeout, absl::ZeroDuration()), kLongest));
}

class MemoryStore final : public Store {
 public:
  absl::Status Set(std::string_view key, std::string_view value) override {
    if (absl::Status status = CheckSizes(key, value); !status.ok()) return status;
    std::lock_guard<std::mutex> lock(mutex_);
    values_.insert_or_assign(std::string(key), std::string(value));
    changed_.notify_all();
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override {
    if (absl::Status status = CheckSizes(key); !status.ok()) return status;
    std::unique_lock<std::mutex> lock(mutex_);
    auto found = values_.end();
    const bool exists = changed_.wait_until(lock, After(timeout), [&] {
      found = values_.find(key);
      return found != values_.end();
    });
    if (exists) return found->second;
    return absl::DeadlineExceededError(absl::StrCat(
        "store key '", std::string(key), "' was not set within ", absl::FormatDuration(timeout)));
  }

  absl::StatusOr<std::optional<std::string>> TryGet(std::string_view key) override {
    if (absl::Status status = CheckSizes(key); !status.ok()) return status;
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = values_.find(key);
    if (found == values_.end()) return std::optional<std::string>();
    return std::optional<std::string>(found->second);
  }

  absl::StatusOr<int64_t> Add(std::string_view key, int64_t delta) override {
    if (absl::Status status = CheckSizes(key); !status.ok()) return status;
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = values_.find(key);
    int64_t value = 0;
    if (found != values_.end()) {
      const std::string& text = found->second;
      auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size()) {
        return absl::InvalidArgumentError(
            absl::StrCat("store key '", std::string(key), "' holds no number"));
      }
    }
    value = static_cast<int64_t>(static_cast<uint64_t>(value) + static_cast<uint64_t>(delta));
    values_.insert_or_assign(std::string(key), std::to_string(value));
    changed_.notify_all();
    return value;
  }

  absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                         std::string_view desired) override {
    if (absl::Status status = CheckSizes(key, desired); !status.ok()) return status;
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = values_.find(key);
    if (found == values_.end() ? !expected.empty() : found->second != expected) {
      return found == values_.end() ? std::string(expected) : found->second;
    }
    values_.insert_or_assign(std::string(key), std::string(desired));
    changed_.notify_all();
    return std::string(desired);
  }

  absl::StatusOr<bool> Delete(std::string_view key) override {
    if (absl::Status status = CheckSizes(key); !status.ok()) return status;
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = values_.find(key);
    if (found == values_.end()) return false;
    values_.erase(found);
    return true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

class PrefixStore final : public Store {
 public:
  PrefixStore(std::shared_ptr<Store> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}

  absl::Status Set(std::string_view key, std::string_view value) override {
    return store_->Set(Full(key), value);
  }
  absl::StatusOr<std::string> Get(std::string_view key, absl::Duration timeout) override {
    return store_->Get(Full(key), timeout);
  }
  absl::StatusOr<std::optional<std::string>> TryGet(std::string_view key) override {
    return store_->TryGet(Full(key));
  }
  absl::StatusOr<int64_t> Add(std::string_view key, int64_t delta) override {
    return store_->Add(Full(key), delta);
  }
  absl::StatusOr<std::string> CompareSet(std::string_view key, std::string_view expected,
                                         std::string_view desired) override {
    return store_->CompareSet(Full(key), expected, desired);
  }
  absl::StatusOr<bool> Delete(std::string_view key) override { return store_->Delete(Full(key)); }

 private:
  std::string Full(std::string_view key) const { return prefix_ + std::string(key); }

  const std::shared_ptr<Store> store_;
  const std::string prefix_;
};

}  // namespace

absl::Status Store::Wait(std::span<const std::string> keys, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (const std::string& key : keys) {
    absl::StatusOr<std::string> value =
        Get(key, std::max(deadline - absl::Now(), absl::ZeroDuration()));
    if (!value.ok()) return value.status();
  }
  return absl::OkStatus();
}

std::shared_ptr<Store> MakeMemoryStore() { return std::make_shared<MemoryStore>(); }

std::shared_ptr<Store> MakePrefixStore(std::shared_ptr<Store> store, std::string prefix) {
  return std::make_shared<PrefixStore>(std::move(store), std::move(prefix));
}

}  // namespace sherd
