#pragma once

namespace sherd {

// Names the line of user code a call came from, for error messages.
//
// Used as the last, defaulted parameter of public functions, so that the values are those of the
// caller. Ownership: `file` points to a string literal.
struct CallSite {
  const char* file = "";
  int line = 0;

  static constexpr CallSite Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

}  // namespace sherd
