#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace llm {

// Flags of a command line: `--flag value` or `--flag=value`, in any order. A dash inside a name
// counts as an underscore. O is a plain struct that holds what they decide, with a `bool help`.

// How one flag's value is read and shown. `set` returns what the flag takes ("an integer of at
// least 1") when the text is not that; `show` prints the field, for the default in the help.
template <typename O>
struct FlagValue {
  std::function<std::optional<std::string>(O&, const std::string&)> set;
  std::function<std::string(const O&)> show = nullptr;
};

template <typename O>
struct Flag {
  std::string name;
  std::string value;  // what it takes, for the help; empty for a switch
  std::string help;
  FlagValue<O> field;
  bool repeatable = false;  // takes all words up to the next flag, and may come again
};

namespace internal {

inline constexpr int64_t kLargest = int64_t{1} << 40;

// What a number is not, or nothing and the number.
std::optional<std::string> ReadInteger(const std::string& text, int64_t least, int64_t most,
                                       int64_t& value);
std::optional<std::string> ReadReal(const std::string& text, double least, double most, bool open,
                                    double& value);
std::optional<std::string> ReadSeed(const std::string& text, uint64_t& value);
std::optional<std::string> ReadDuration(const std::string& text, absl::Duration& value);
// Of the names, the one with the fewest insertions, deletions and replacements.
std::string NearestName(std::string_view name, const std::vector<std::string>& names);
// Splits "--name=value"; the name comes back with underscores.
std::pair<std::string, std::optional<std::string>> SplitArgument(std::string_view argument);

}  // namespace internal

template <typename O>
FlagValue<O> IntegerFlag(int64_t O::*field, int64_t least, int64_t most = internal::kLargest) {
  return {[=](O& o, const std::string& text) {
            return internal::ReadInteger(text, least, most, o.*field);
          },
          [=](const O& o) { return absl::StrCat(o.*field); }};
}

// A finite number in [least, most), or in (least, most) when `open`.
template <typename O>
FlagValue<O> RealFlag(double O::*field, double least, double most, bool open = false) {
  return {[=](O& o, const std::string& text) {
            return internal::ReadReal(text, least, most, open, o.*field);
          },
          [=](const O& o) { return absl::StrCat(o.*field); }};
}

// An integer from 0 to 2^64 - 1.
template <typename O>
FlagValue<O> SeedFlag(uint64_t O::*field) {
  return {[=](O& o, const std::string& text) { return internal::ReadSeed(text, o.*field); },
          [=](const O& o) { return absl::StrCat(o.*field); }};
}

// Any text but an empty one, which `what` names.
template <typename O>
FlagValue<O> TextFlag(std::string O::*field, std::string what) {
  return {[=](O& o, const std::string& text) -> std::optional<std::string> {
    if (text.empty()) return what;
    o.*field = text;
    return std::nullopt;
  }};
}

// More than nothing and at most 1000 hours; a number alone is seconds.
template <typename O>
FlagValue<O> DurationFlag(absl::Duration O::*field) {
  return {[=](O& o, const std::string& text) { return internal::ReadDuration(text, o.*field); },
          [=](const O& o) { return absl::FormatDuration(o.*field); }};
}

// One of two words.
template <typename O>
FlagValue<O> EitherFlag(bool O::*field, std::string yes, std::string no) {
  return {[=](O& o, const std::string& text) -> std::optional<std::string> {
            if (text != yes && text != no) return absl::StrCat(yes, " or ", no);
            o.*field = text == yes;
            return std::nullopt;
          },
          [=](const O& o) { return o.*field ? yes : no; }};
}

template <typename O>
FlagValue<O> SwitchFlag(bool O::*field, bool value) {
  return {[=](O& o, const std::string&) -> std::optional<std::string> {
    o.*field = value;
    return std::nullopt;
  }};
}

// Reads the arguments behind the program's name into `options`, and the names that came into
// `seen`. Stops behind a `--help`. Errors: kInvalidArgument with one sentence that names the flag
// and what it takes: an unknown flag
//   (and the nearest known one), a missing, malformed or out-of-range value, a flag given twice.
template <typename O>
absl::Status ParseFlags(const std::vector<Flag<O>>& flags, std::span<const char* const> arguments,
                        O& options, std::set<std::string>& seen) {
  const auto invalid = [](const std::string& text) { return absl::InvalidArgumentError(text); };
  const std::vector<std::string> words(arguments.begin(), arguments.end());
  const auto is_flag = [](const std::string& word) { return word.rfind("--", 0) == 0; };
  for (size_t i = 0; i < words.size(); ++i) {
    if (!is_flag(words[i])) {
      const auto list =
          std::find_if(flags.begin(), flags.end(), [](const Flag<O>& f) { return f.repeatable; });
      return invalid(absl::StrCat(
          "'", words[i], "' belongs to no flag",
          list != flags.end() ? absl::StrCat("; files follow --", list->name) : std::string()));
    }
    const auto [name, inline_value] = internal::SplitArgument(words[i]);
    const auto flag = std::find_if(flags.begin(), flags.end(),
                                   [&, n = name](const Flag<O>& f) { return f.name == n; });
    if (flag == flags.end()) {
      std::vector<std::string> names;
      for (const Flag<O>& f : flags) names.push_back(f.name);
      return invalid(absl::StrCat("unknown flag --", name, "; did you mean --",
                                  internal::NearestName(name, names), "? --help lists all flags"));
    }
    if (!seen.insert(name).second && !flag->repeatable) {
      return invalid(absl::StrCat("--", name, " is given twice"));
    }
    std::vector<std::string> values;
    if (inline_value) values.push_back(*inline_value);
    if (flag->value.empty()) {
      if (inline_value) return invalid(absl::StrCat("--", name, " takes no value"));
      values.emplace_back();
    }
    while (values.empty() || (flag->repeatable && !inline_value)) {
      if (i + 1 == words.size() || is_flag(words[i + 1])) break;
      values.push_back(words[++i]);
    }
    if (values.empty()) return invalid(absl::StrCat("--", name, " needs a value: ", flag->value));
    for (const std::string& value : values) {
      const std::optional<std::string> wanted = flag->field.set(options, value);
      if (!wanted) continue;
      return invalid(absl::StrCat("--", name, " takes ", *wanted, ", not '", value, "'"));
    }
    if (options.help) return absl::OkStatus();
  }
  return absl::OkStatus();
}

// A line for each flag, with its default.
template <typename O>
std::string FlagLines(const std::vector<Flag<O>>& flags) {
  std::string text;
  for (const Flag<O>& flag : flags) {
    const std::string left =
        absl::StrCat("--", flag.name, flag.value.empty() ? "" : " ", flag.value);
    const std::string initial = flag.field.show ? absl::StrCat(" [", flag.field.show({}), "]") : "";
    absl::StrAppendFormat(&text, "  %-20s %s%s\n", left, flag.help, initial);
  }
  return text;
}

}  // namespace llm
