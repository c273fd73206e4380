#pragma once

#include <chrono>

namespace llm {

// Seconds since it was made or restarted.
class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
  }
  void Restart() { began_ = std::chrono::steady_clock::now(); }

 private:
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
};

}  // namespace llm
