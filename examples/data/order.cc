#include "data/order.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "data/json_lines.h"
#include "sherd/runtime/core/random.h"

namespace data {

using sherd::HashName;
using sherd::Mix64;

Permutation::Permutation(int64_t size, uint64_t key)
    : size_(static_cast<uint64_t>(size)), key_(key), half_bits_(1) {
  while ((uint64_t{1} << (2 * half_bits_)) < size_) ++half_bits_;
}

uint64_t Permutation::Encrypt(uint64_t x) const {
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = x >> half_bits_;
  uint64_t right = x & mask;
  for (uint64_t round = 0; round < 4; ++round) {
    const uint64_t next = left ^ (Mix64(Mix64(key_, round), right) & mask);
    left = right;
    right = next;
  }
  return left << half_bits_ | right;
}

int64_t Permutation::operator()(int64_t i) const {
  auto x = static_cast<uint64_t>(i);
  do {
    x = Encrypt(x);
  } while (x >= size_);
  return static_cast<int64_t>(x);
}

Order::Order(int64_t samples, uint64_t seed) : samples_(samples), seed_(seed) {}

int64_t Order::operator()(Cursor at) const {
  const uint64_t key = Mix64(Mix64(seed_, HashName("order")), static_cast<uint64_t>(at.epoch));
  return Permutation(samples_, key)(at.position);
}

std::vector<int64_t> Order::Take(Cursor& at, int64_t most) const {
  const int64_t count = std::min(most, samples_ - at.position);
  std::vector<int64_t> taken;
  taken.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    taken.push_back((*this)(at));
    ++at.position;
  }
  if (at.position == samples_) at = {at.epoch + 1, 0};
  return taken;
}

std::string Order::Save(Cursor at) const {
  return absl::StrCat("{\"epoch\":", at.epoch, ",\"position\":", at.position,
                      ",\"samples\":", samples_, ",\"seed\":\"", seed_, "\"}");
}

absl::StatusOr<Cursor> Order::Restore(const std::string& state) const {
  absl::StatusOr<sherd::Json> json = sherd::ParseJson(state);
  if (!json.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("state of an order: ", std::string(json.status().message())));
  }
  const auto* const object = std::get_if<sherd::JsonObject>(&json->value);
  int64_t samples = 0;
  Cursor at;
  for (const auto& [key, out] : {std::pair("epoch", &at.epoch), std::pair("position", &at.position),
                                 std::pair("samples", &samples)}) {
    const auto found = object == nullptr ? sherd::JsonObject::const_iterator() : object->find(key);
    const bool there = object != nullptr && found != object->end();
    const auto* const integer = there ? std::get_if<int64_t>(&found->second.value) : nullptr;
    if (integer == nullptr || *integer < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("state of an order: \"", key, "\" is no count: ", state));
    }
    *out = *integer;
  }
  const auto seed = object->find("seed");
  const auto* const text =
      seed == object->end() ? nullptr : std::get_if<std::string>(&seed->second.value);
  if (text == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("state of an order: \"seed\" is no string: ", state));
  }
  if (samples != samples_ || *text != absl::StrCat(seed_)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the state is of ", samples, " samples and seed ", *text, ", the order of ",
                     samples_, " samples and seed ", seed_));
  }
  if (at.position >= samples_) {
    return absl::InvalidArgumentError(absl::StrCat("state of an order: position ", at.position,
                                                   " is outside [0, ", samples_, ")"));
  }
  return at;
}

std::vector<Range> CutMicroBatches(int64_t samples, int64_t rows) {
  std::vector<Range> cut;
  for (int64_t begin = 0; begin < samples; begin += rows) {
    cut.push_back({begin, std::min(begin + rows, samples)});
  }
  return cut;
}

std::vector<Range> ShareOf(const std::vector<Range>& micro_batches, int rank, int size) {
  std::vector<Range> share;
  for (size_t i = static_cast<size_t>(rank); i < micro_batches.size();
       i += static_cast<size_t>(size)) {
    share.push_back(micro_batches[i]);
  }
  return share;
}

}  // namespace data
