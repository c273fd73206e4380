#include "tests/process/fault_report.h"

#include <dirent.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace sherd::testing {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kBeat{20};
// A sleep this much too long is nothing.
constexpr double kTolerance = 0.005;

double Seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

std::set<std::string> OwnSockets() {
  std::set<std::string> inodes;
  DIR* const folder = opendir("/proc/self/fd");
  if (folder == nullptr) return inodes;
  while (const dirent* entry = readdir(folder)) {
    char target[64] = "";
    const std::string path = absl::StrCat("/proc/self/fd/", entry->d_name);
    if (readlink(path.c_str(), target, sizeof(target) - 1) <= 0) continue;
    const std::string text = target;  // "socket:[123]"
    if (text.rfind("socket:[", 0) == 0) inodes.insert(text.substr(8, text.size() - 9));
  }
  closedir(folder);
  return inodes;
}

}  // namespace

FaultReport::FaultReport(const std::string& path)
    : file_(std::fopen(path.c_str(), "w")), beat_([this] { Beat(); }) {}

FaultReport::~FaultReport() {
  stop_ = true;
  beat_.join();
  if (file_ != nullptr) std::fclose(file_);
}

void FaultReport::Say(std::string words) {
  if (file_ == nullptr) return;
  words = absl::StrReplaceAll(words, {{"\n", " | "}});
  std::fprintf(file_, "%.3f %s\n", Seconds(Clock::now().time_since_epoch()), words.c_str());
  std::fflush(file_);
}

void FaultReport::Beat() {
  while (!stop_) {
    const Clock::time_point before = Clock::now();
    std::this_thread::sleep_for(kBeat);
    const double late = Seconds(Clock::now() - before - kBeat);
    if (late > kTolerance) late_ = late_ + late;
  }
}

std::string ListeningSockets() {
  constexpr int kListen = 0x0A;
  const std::set<std::string> own = OwnSockets();
  std::string text;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream file(table);
    std::string line;
    std::getline(file, line);  // the heading
    while (std::getline(file, line)) {
      std::istringstream in(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      in >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >>
          timeout >> inode;
      if (std::stoi("0" + state, nullptr, 16) != kListen || own.count(inode) == 0) continue;
      absl::StrAppend(&text, text.empty() ? "" : " ",
                      std::stoi(local.substr(local.find(':') + 1), nullptr, 16), "/", inode);
    }
  }
  return text;
}

}  // namespace sherd::testing
