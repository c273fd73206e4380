#pragma once

#include <cstdint>
#include <string>

namespace llm {

// "0", "953", "11.2k", "4.40M": three digits and a decimal suffix.
std::string FormatCount(double value);

// "512 B", "31.4 MiB": three digits and a binary unit.
std::string FormatBytes(int64_t bytes);

// "9s", "1m32s", "2h05m"; "?" for what is negative or not finite. Units: seconds.
std::string FormatSeconds(double seconds);

// `value` printed with a printf format for one double; "nan" and "inf" without a sign of nan.
std::string FormatNumber(const char* format, double value);

// "1 rank", "3 ranks".
std::string Counted(int64_t count, const std::string& noun);

// "on" or "off".
std::string OnOff(bool on);

}  // namespace llm
