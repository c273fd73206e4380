#pragma once

#include <cctype>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace sherd::testing {

// A JSON value, read by the letter of RFC 8259 but for \u above 7f, which stays as it is written.
// Fields that are not its kind's are empty.
struct Json {
  std::string text;  // of a string; of a number as written
  double number = 0.0;
  std::vector<Json> items;
  std::map<std::string, Json> members;

  const Json& operator[](const std::string& name) const {
    const auto it = members.find(name);
    if (it == members.end()) throw std::runtime_error("no member '" + name + "'");
    return it->second;
  }
};

// Throws std::runtime_error, with the place, at the first thing that is not JSON.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}
  Json Read() {
    Json value = Value();
    Blanks();
    if (at_ != text_.size()) Fail("more than one value");
    return value;
  }

 private:
  [[noreturn]] void Fail(const std::string& what) const {
    throw std::runtime_error(what + " at byte " + std::to_string(at_));
  }
  char Next() {
    if (at_ == text_.size()) Fail("an early end");
    return text_[at_++];
  }
  void Blanks() {
    while (at_ < text_.size() && std::string_view(" \n\r\t").find(text_[at_]) != text_.npos) ++at_;
  }
  bool Take(char c) {
    Blanks();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void Expect(char c) {
    if (!Take(c)) Fail(std::string("no '") + c + "'");
  }
  std::string String() {
    Expect('"');
    std::string value;
    for (;;) {
      const char c = Next();
      if (c == '"') return value;
      if (static_cast<unsigned char>(c) < 0x20) Fail("a control character");
      value += c == '\\' ? Escape() : std::string(1, c);
    }
  }
  std::string Escape() {
    const char c = Next();
    if (c == 'n') return "\n";
    if (c == 't') return "\t";
    if (std::string_view("\"\\/").find(c) != std::string_view::npos) return {c};
    if (c != 'u') Fail("an unknown escape");
    std::string digits;
    for (int i = 0; i < 4; ++i) digits += Next();
    const int code = std::stoi(digits, nullptr, 16);
    return code < 0x80 ? std::string(1, static_cast<char>(code)) : "\\u" + digits;
  }
  Json Value() {
    Json value;
    Blanks();
    if (at_ < text_.size() && text_[at_] == '"') {
      value.text = String();
    } else if (Take('{')) {
      while (!Take('}')) {
        if (!value.members.empty()) Expect(',');
        Blanks();
        const std::string name = String();
        Expect(':');
        if (!value.members.emplace(name, Value()).second) Fail("twice '" + name + "'");
      }
    } else if (Take('[')) {
      while (!Take(']')) {
        if (!value.items.empty()) Expect(',');
        value.items.push_back(Value());
      }
    } else {
      const size_t begin = at_;
      while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 ||
                                    std::string_view("+-.").find(text_[at_]) != text_.npos)) {
        ++at_;
      }
      value.text = std::string(text_.substr(begin, at_ - begin));
      size_t used = 0;
      value.number = std::stod(value.text, &used);
      if (used != value.text.size()) Fail("no number");
    }
    return value;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace sherd::testing
