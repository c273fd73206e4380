#include "llm/flags.h"

#include <charconv>
#include <cmath>
#include <numeric>

#include "absl/strings/numbers.h"

namespace llm::internal {
namespace {

// Levenshtein's distance: insertions, deletions and replacements that lead from a to b.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

// Whether all of a text is a number that fits.
template <typename T>
bool ReadWhole(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::optional<std::string> ReadInteger(const std::string& text, int64_t least, int64_t most,
                                       int64_t& value) {
  int64_t read = 0;
  if (ReadWhole(text, read) && read >= least && read <= most) {
    value = read;
    return std::nullopt;
  }
  return most == kLargest ? absl::StrCat("an integer of at least ", least)
                          : absl::StrCat("an integer from ", least, " to ", most);
}

std::optional<std::string> ReadReal(const std::string& text, double least, double most, bool open,
                                    double& value) {
  double read = 0;
  if (absl::SimpleAtod(text, &read) && std::isfinite(read) && read < most &&
      (open ? read > least : read >= least)) {
    value = read;
    return std::nullopt;
  }
  const std::string low = absl::StrCat(open ? "a number above " : "a number of at least ", least);
  return most >= 1e30 ? low : absl::StrCat(low, " and below ", most);
}

std::optional<std::string> ReadSeed(const std::string& text, uint64_t& value) {
  if (ReadWhole(text, value)) return std::nullopt;
  return "an integer from 0 to 2^64 - 1";
}

std::optional<std::string> ReadDuration(const std::string& text, absl::Duration& value) {
  double seconds = 0;
  absl::Duration duration;
  if (absl::SimpleAtod(text, &seconds) && std::isfinite(seconds)) {
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(text, &duration)) {
    duration = absl::ZeroDuration();
  }
  if (duration <= absl::ZeroDuration() || duration > absl::Hours(1000)) {
    return "a duration such as 90, 90s or 5m";
  }
  value = duration;
  return std::nullopt;
}

std::string NearestName(std::string_view name, const std::vector<std::string>& names) {
  return *std::min_element(names.begin(), names.end(),
                           [&](const std::string& a, const std::string& b) {
                             return EditDistance(name, a) < EditDistance(name, b);
                           });
}

std::pair<std::string, std::optional<std::string>> SplitArgument(std::string_view argument) {
  argument.remove_prefix(2);
  const size_t equals = argument.find('=');
  std::string name(argument.substr(0, equals));
  std::replace(name.begin(), name.end(), '-', '_');
  if (equals == std::string_view::npos) return {name, std::nullopt};
  return {name, std::string(argument.substr(equals + 1))};
}

}  // namespace llm::internal
