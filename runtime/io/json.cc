#include "sherd/runtime/io/json.h"

#include <cmath>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/utf8.h"

namespace sherd {
namespace {

constexpr int kMostNested = 64;

void AppendUtf8(uint32_t code, std::string& out) {
  const auto tail = [&out, code](int shift) {
    out.push_back(static_cast<char>(0x80 | (code >> shift & 0x3F)));
  };
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out.push_back(static_cast<char>(0xC0 | code >> 6));
    tail(0);
  } else if (code < 0x10000) {
    out.push_back(static_cast<char>(0xE0 | code >> 12));
    tail(6);
    tail(0);
  } else {
    out.push_back(static_cast<char>(0xF0 | code >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Each function reads what its name says from the place on; false leaves the reason in `wrong_`.
class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  absl::StatusOr<Json> Parse() {
    Json json;
    SkipSpace();
    if (Value(json, 0)) {
      SkipSpace();
      if (at_ == text_.size()) return json;
      Fail("something follows the value");
    }
    return absl::InvalidArgumentError(absl::StrCat("column ", at_ + 1, ": ", wrong_));
  }

 private:
  bool Fail(const std::string& why) {
    wrong_ = why;
    return false;
  }
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool Take(char c) {
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool TakeWord(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  void SkipSpace() {
    while (Peek() == ' ' || Peek() == '\t' || Peek() == '\n' || Peek() == '\r') ++at_;
  }

  bool Value(Json& out, int depth) {
    if (depth == kMostNested)
      return Fail(absl::StrCat("more than ", kMostNested, " nested values"));
    const char c = Peek();
    if (c == '{') return Object(out.value.emplace<JsonObject>(), depth);
    if (c == '[') return Array(out.value.emplace<JsonArray>(), depth);
    if (c == '"') return String(out.value.emplace<std::string>());
    if (c == '-' || IsDigit(c)) return Number(out);
    if (TakeWord("true")) return out.value = true, true;
    if (TakeWord("false")) return out.value = false, true;
    if (TakeWord("null")) return out.value = nullptr, true;
    return Fail(at_ == text_.size() ? "the text ends where a value is due" : "no JSON value");
  }

  bool Object(JsonObject& out, int depth) {
    ++at_;
    SkipSpace();
    if (Take('}')) return true;
    do {
      SkipSpace();
      std::string key;
      if (Peek() != '"') return Fail("a key in quotes is due");
      const size_t key_at = at_;
      if (!String(key)) return false;
      SkipSpace();
      if (!Take(':')) return Fail("':' is due");
      SkipSpace();
      const auto [entry, added] = out.try_emplace(key);
      if (!added) return at_ = key_at, Fail(absl::StrCat("key \"", key, "\" comes twice"));
      if (!Value(entry->second, depth + 1)) return false;
      SkipSpace();
    } while (Take(','));
    return Take('}') || Fail("',' or '}' is due");
  }

  bool Array(JsonArray& out, int depth) {
    ++at_;
    SkipSpace();
    if (Take(']')) return true;
    do {
      SkipSpace();
      if (!Value(out.emplace_back(), depth + 1)) return false;
      SkipSpace();
    } while (Take(','));
    return Take(']') || Fail("',' or ']' is due");
  }

  bool String(std::string& out) {
    ++at_;
    while (!Take('"')) {
      if (at_ == text_.size()) return Fail("the text ends inside a string");
      if (Take('\\')) {
        if (!Escape(out)) return false;
        continue;
      }
      if (static_cast<uint8_t>(Peek()) < 0x20) return Fail("a control character inside a string");
      const size_t bytes = Utf8SequenceBytes(text_.substr(at_));
      if (bytes == 0) return Fail("bytes that are not UTF-8");
      out.append(text_.substr(at_, bytes));
      at_ += bytes;
    }
    return true;
  }

  bool Escape(std::string& out) {
    constexpr std::string_view kNames = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    if (Take('u')) return Unicode(out);
    const size_t found = at_ < text_.size() ? kNames.find(Peek()) : std::string_view::npos;
    if (found == std::string_view::npos) return Fail("an unknown escape");
    ++at_;
    out.push_back(kMeanings[found]);
    return true;
  }

  std::optional<uint32_t> FourDigits() {
    uint32_t code = 0;
    const std::string digits(text_.substr(at_, 4));
    if (digits.size() < 4 || !absl::SimpleHexAtoi(digits, &code)) return std::nullopt;
    for (char c : digits) {
      if (!IsDigit(c) && ((c | 0x20) < 'a' || (c | 0x20) > 'f')) return std::nullopt;
    }
    at_ += 4;
    return code;
  }

  bool Unicode(std::string& out) {
    std::optional<uint32_t> code = FourDigits();
    if (!code) return Fail("\\u without four hexadecimal digits");
    if (*code >= 0xD800 && *code < 0xE000) {
      const bool high = *code < 0xDC00 && TakeWord("\\u");
      const std::optional<uint32_t> low = high ? FourDigits() : std::nullopt;
      if (!low || *low < 0xDC00 || *low >= 0xE000) return Fail("half a surrogate pair");
      code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
    }
    AppendUtf8(*code, out);
    return true;
  }

  bool Digits() {
    const size_t begin = at_;
    while (IsDigit(Peek())) ++at_;
    return at_ > begin || Fail("a digit is due");
  }

  bool Number(Json& out) {
    const size_t begin = at_;
    Take('-');
    if (Peek() == '0') {
      ++at_;
      if (IsDigit(Peek())) return Fail("a number begins with 0");
    } else if (!Digits()) {
      return false;
    }
    const size_t integer_end = at_;
    if (Take('.') && !Digits()) return false;
    if (Take('e') || Take('E')) {
      if (!Take('+')) Take('-');
      if (!Digits()) return false;
    }
    const std::string digits(text_.substr(begin, at_ - begin));
    int64_t integer = 0;
    double number = 0;
    if (at_ == integer_end && absl::SimpleAtoi(digits, &integer)) return out.value = integer, true;
    if (!absl::SimpleAtod(digits, &number)) return Fail("no number");
    if (std::isinf(number)) return at_ = begin, Fail("a number beyond the range of double");
    out.value = number;
    return true;
  }

  const std::string_view text_;
  size_t at_ = 0;
  std::string wrong_;
};

}  // namespace

const char* Json::kind() const {
  constexpr const char* kKinds[] = {"null",     "a boolean", "an integer", "a number",
                                    "a string", "an array",  "an object"};
  return kKinds[value.index()];
}

absl::StatusOr<Json> ParseJson(std::string_view text) { return Parser(text).Parse(); }

}  // namespace sherd
