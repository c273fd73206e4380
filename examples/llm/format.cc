#include "llm/format.h"

#include <cmath>
#include <cstdio>

namespace llm {
namespace {

// Three significant digits for 0 <= value < 1024.
std::string ThreeDigits(double value) {
  return FormatNumber(value < 9.995 ? "%.2f" : (value < 99.95 ? "%.1f" : "%.0f"), value);
}

}  // namespace

std::string FormatNumber(const char* format, double value) {
  if (std::isnan(value)) return "nan";
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), format, value);
  return buffer;
}

std::string FormatCount(double value) {
  if (!std::isfinite(value)) return FormatNumber("%f", value);
  if (value < 0) return FormatCount(-value).insert(0, 1, '-');
  if (value < 999.5) return FormatNumber(value == std::floor(value) ? "%.0f" : "%.3g", value);
  const char* suffix = "kMGT";
  double scaled = value / 1e3;
  while (scaled >= 999.5 && suffix[1] != '\0') {
    scaled /= 1e3;
    ++suffix;
  }
  return ThreeDigits(scaled) + *suffix;
}

std::string FormatBytes(int64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes) + " B";
  const char* prefix = "KMGT";
  double scaled = static_cast<double>(bytes) / 1024;
  while (scaled >= 1023.5 && prefix[1] != '\0') {
    scaled /= 1024;
    ++prefix;
  }
  return ThreeDigits(scaled) + " " + *prefix + "iB";
}

std::string FormatSeconds(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "?";
  const auto total = static_cast<int64_t>(std::llround(seconds));
  char buffer[48];
  if (total < 60) {
    std::snprintf(buffer, sizeof(buffer), "%ds", static_cast<int>(total));
  } else if (total < 3600) {
    std::snprintf(buffer, sizeof(buffer), "%dm%02ds", static_cast<int>(total / 60),
                  static_cast<int>(total % 60));
  } else {
    std::snprintf(buffer, sizeof(buffer), "%lldh%02dm", static_cast<long long>(total / 3600),
                  static_cast<int>(total / 60 % 60));
  }
  return buffer;
}

std::string Counted(int64_t count, const std::string& noun) {
  return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

std::string OnOff(bool on) { return on ? "on" : "off"; }

}  // namespace llm
