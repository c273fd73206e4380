#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "sherd/autograd/call.h"
#include "sherd/autograd/internal/region.h"
#include "sherd/autograd/tape.h"

namespace sherd::internal {

struct RandomContext {
  uint64_t seed = 0;
  int64_t step = 0;
  std::vector<int64_t> samples;
};

// One level of recording on a thread. Levels form a chain: a region inside a tape, a recompute's
// tape inside the tape being walked.
struct Recorder {
  Recorder* outer = nullptr;
  TapeImpl* tape = nullptr;      // the tape of this level, or of the one a region is in
  RegionNotes* notes = nullptr;  // set: a first pass, nothing is recorded
  Replay* replay = nullptr;      // set: the recompute of such a pass
  Ref<Home> home;                // of variables born here
  uint64_t first_birth = 0;      // variables born before are from outside
  bool recompute = false;
  bool root = false;  // of a Recording: what is further out belongs to other tapes

  // Whether a variable of `home` may be used on this level: it is a leaf, or born here or further
  // out on the same tape.
  bool Knows(const Ref<Home>& variable_home) const;
};

// The state of this thread: which recorder and which call are innermost.
struct ThreadState {
  Recorder* recorder = nullptr;
  CallFrame* frame = nullptr;
  int ops = 0;          // ops that are running: what is read meanwhile is read by them
  bool scaled = false;  // a backward runs whose observers have had their say on its seeds
};
ThreadState& CurrentThread();

// Makes `recorder` (null: none) the thread's innermost level while it lives.
class RecorderGuard {
 public:
  explicit RecorderGuard(Recorder* recorder) : previous_(CurrentThread().recorder) {
    CurrentThread().recorder = recorder;
  }
  ~RecorderGuard() { CurrentThread().recorder = previous_; }
  RecorderGuard(const RecorderGuard&) = delete;
  RecorderGuard& operator=(const RecorderGuard&) = delete;

 private:
  Recorder* previous_;
};

// The path of the innermost module call, for messages.
std::string CurrentModulePath();
std::string PathOf(const Module* module);

}  // namespace sherd::internal
