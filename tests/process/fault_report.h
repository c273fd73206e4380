#pragma once

#include <atomic>
#include <cstdio>
#include <string>
#include <thread>

namespace sherd::testing {

// What one rank of a fault test tells the driver: a file of lines "<seconds> <words>", the seconds
// those of CLOCK_MONOTONIC, which all processes of a host share.
//
// Also counts how long this process was kept from running: a thread that sleeps 20 ms at a time
// sums up what it slept too long. On a machine that is busy elsewhere a limit is raised by that.
// Threads: safe.
class FaultReport {
 public:
  explicit FaultReport(const std::string& path);
  ~FaultReport();
  FaultReport(const FaultReport&) = delete;
  FaultReport& operator=(const FaultReport&) = delete;

  // Writes one line, at once; line breaks in `words` become " | ".
  void Say(std::string words);
  double late_seconds() const { return late_; }

 private:
  void Beat();

  std::FILE* const file_;
  std::atomic<bool> stop_{false};
  std::atomic<double> late_{0.0};
  std::thread beat_;
};

// "port/inode port/inode": the sockets on which this process listens.
std::string ListeningSockets();

}  // namespace sherd::testing
