#include "block.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "emulated/device.h"
#include "fiber.h"
#include "mma.h"

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{1, 1, 1};
constinit thread_local dim3 gridDim{1, 1, 1};

namespace emulated {
namespace {

constexpr int kWarp = 32;

// One thread of the block.
struct Thread {
  Meeting meeting = Meeting::kNone;  // what it waits for
  Site site{};
  unsigned mask = 0;
  int source = 0;
  uint64_t value = 0;  // what it brings, then what it takes
  bool ended = false;
  struct Worker* worker = nullptr;  // while it waits
};

class Block;

// A fiber, which runs one thread after another.
struct Worker {
  Worker(void (*entry)(void*), Block& owner) : block(owner), fiber(entry, this) {}
  Block& block;
  int thread = -1;
  Fiber fiber;
};

// Runs blocks; kept by its thread of the system, so that fibers are made once.
class Block {
 public:
  void Run(const Grid& grid, uint3 index, uint64_t order);
  int MeetOthers(int predicate, Site site);
  uint64_t MeetLanes(Meeting meeting, unsigned mask, uint64_t value, int source, Site site);
  int lane() const { return current_->thread % kWarp; }
  unsigned LiveLanesOf(int warp) const;
  int warp() const { return current_->thread / kWarp; }
  unsigned char* dynamic() { return dynamic_; }

 private:
  static void Work(void* worker);
  void WorkOn(Worker& self);
  void Start(int thread);
  void End(Thread& thread);
  void Park(Thread& thread);
  Fiber* Next();
  bool CompleteBlock();
  bool CompleteLanes(int warp, const Thread& one);
  void Resolve(int warp, unsigned lanes, const Thread& one);
  void Release(int thread);
  void Enter(Worker& worker);
  [[noreturn]] void Stuck(const char* what) const;
  uint64_t Random() { return state_ = state_ * 6364136223846793005ull + 1442695040888963407ull; }

  const Grid* grid_ = nullptr;
  int count_ = 0;
  int started_ = 0;
  int ended_ = 0;
  int waiting_for_block_ = 0;
  std::vector<Thread> threads_;
  std::vector<int> order_;
  std::vector<int> ready_;  // threads that may go on
  size_t ready_begin_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> idle_;
  std::vector<unsigned char> dynamic_bytes_;
  unsigned char* dynamic_ = nullptr;  // aligned, in dynamic_bytes_
  Worker* current_ = nullptr;
  Fiber caller_;
  uint64_t state_ = 0;
};

thread_local Block* block = nullptr;

const char* NameOf(Meeting meeting) {
  switch (meeting) {
    case Meeting::kSyncthreads:
      return "__syncthreads";
    case Meeting::kSyncwarp:
      return "__syncwarp";
    case Meeting::kShuffle:
      return "a shuffle";
    case Meeting::kBallot:
      return "a vote";
    case Meeting::kMma:
      return "a tensor-core product";
    case Meeting::kNone:
      break;
  }
  return "nothing";
}

bool SameSite(const Thread& a, const Thread& b) {
  return a.meeting == b.meeting && a.site.line == b.site.line && a.mask == b.mask &&
         std::strcmp(a.site.file, b.site.file) == 0;
}

void Block::Run(const Grid& grid, uint3 index, uint64_t order) {
  grid_ = &grid;
  count_ = static_cast<int>(grid.block.x * grid.block.y * grid.block.z);
  started_ = ended_ = waiting_for_block_ = 0;
  threads_.assign(count_, Thread{});
  order_.resize(count_);
  std::iota(order_.begin(), order_.end(), 0);
  state_ = order;
  if (order != 0) {
    for (int i = count_ - 1; i > 0; --i) std::swap(order_[i], order_[(Random() >> 33) % (i + 1)]);
  }
  ready_.clear();
  ready_begin_ = 0;
  dynamic_bytes_.assign(grid.dynamic_bytes + 16, 0xff);
  const auto address = reinterpret_cast<uintptr_t>(dynamic_bytes_.data());
  dynamic_ = dynamic_bytes_.data() + (16 - address % 16) % 16;
  blockIdx = index;
  block = this;
  Next()->SwitchFrom(caller_);
  block = nullptr;
}

void Block::Work(void* worker) {
  auto& self = *static_cast<Worker*>(worker);
  self.block.WorkOn(self);
}

void Block::WorkOn(Worker& self) {
  for (;;) {
    const int index = self.thread;
    Enter(self);
    grid_->thread();
    End(threads_[index]);
    idle_.push_back(&self);
    Fiber* next = Next();
    if (next != &self.fiber) next->SwitchFrom(self.fiber);
  }
}

// Makes `worker` the running one.
void Block::Enter(Worker& worker) {
  current_ = &worker;
  const auto index = static_cast<unsigned>(worker.thread);
  const dim3& size = grid_->block;
  threadIdx = {index % size.x, index / size.x % size.y, index / (size.x * size.y)};
}

// What goes on now: a thread that met the others, else a new one, else the caller of Run.
Fiber* Block::Next() {
  if (ready_begin_ < ready_.size()) {
    if (state_ != 0) {
      const size_t left = ready_.size() - ready_begin_;
      std::swap(ready_[ready_begin_], ready_[ready_begin_ + (Random() >> 33) % left]);
    }
    Worker* worker = threads_[ready_[ready_begin_++]].worker;
    if (ready_begin_ == ready_.size()) {
      ready_.clear();
      ready_begin_ = 0;
    }
    return &worker->fiber;
  }
  if (started_ < count_) {
    if (idle_.empty()) {
      workers_.push_back(std::make_unique<Worker>(&Block::Work, *this));
      idle_.push_back(workers_.back().get());
    }
    Worker* worker = idle_.back();
    idle_.pop_back();
    worker->thread = order_[started_++];
    return &worker->fiber;
  }
  if (ended_ == count_) return &caller_;
  Stuck("threads wait for others that do not come");
}

// Waits until Release has been called for the thread.
void Block::Park(Thread& thread) {
  Worker& self = *current_;
  thread.worker = &self;
  Fiber* next = Next();
  if (next != &self.fiber) next->SwitchFrom(self.fiber);
  Enter(self);
}

void Block::Release(int thread) {
  threads_[thread].meeting = Meeting::kNone;
  ready_.push_back(thread);
}

// Those that remain may have waited for this thread alone.
void Block::End(Thread& thread) {
  thread.ended = true;
  ++ended_;
  CompleteBlock();
  const int warp = static_cast<int>(&thread - threads_.data()) / kWarp;
  for (int i = warp * kWarp; i < std::min(count_, (warp + 1) * kWarp); ++i) {
    const Meeting meeting = threads_[i].meeting;
    if (meeting != Meeting::kNone && meeting != Meeting::kSyncthreads) {
      CompleteLanes(warp, Thread(threads_[i]));
    }
  }
}

int Block::MeetOthers(int predicate, Site site) {
  Thread& self = threads_[current_->thread];
  self.meeting = Meeting::kSyncthreads;
  self.site = site;
  self.mask = 0;
  self.value = predicate != 0;
  ++waiting_for_block_;
  CompleteBlock();
  Park(self);
  return static_cast<int>(self.value);
}

bool Block::CompleteBlock() {
  if (waiting_for_block_ == 0 || waiting_for_block_ + ended_ < count_) return false;
  const Thread* first = nullptr;
  uint64_t sum = 0;
  for (const Thread& thread : threads_) {
    if (thread.ended) continue;
    if (first == nullptr) first = &thread;
    if (!SameSite(*first, thread)) Stuck("threads of a block meet at different barriers");
    sum += thread.value;
  }
  waiting_for_block_ = 0;
  for (int i = 0; i < count_; ++i) {
    if (threads_[i].ended) continue;
    threads_[i].value = sum;
    Release(i);
  }
  return true;
}

unsigned Block::LiveLanesOf(int warp) const {
  unsigned lanes = 0;
  for (int lane = 0; lane < kWarp && warp * kWarp + lane < count_; ++lane) {
    if (!threads_[warp * kWarp + lane].ended) lanes |= 1u << lane;
  }
  return lanes;
}

uint64_t Block::MeetLanes(Meeting meeting, unsigned mask, uint64_t value, int source, Site site) {
  Thread& self = threads_[current_->thread];
  self.meeting = meeting;
  self.site = site;
  self.mask = mask;
  self.value = value;
  self.source = source;
  if ((mask >> lane() & 1) == 0) Stuck("a thread is not in the mask that it passes");
  if (meeting == Meeting::kMma && (count_ % kWarp != 0 || LiveLanesOf(warp()) != 0xffffffffu)) {
    Stuck("a tensor-core product needs all lanes of the warp");
  }
  CompleteLanes(warp(), Thread(self));
  Park(self);
  return self.value;
}

// Lets the lanes that wait with `one` go on, once all of its mask that still run are among them.
bool Block::CompleteLanes(int warp, const Thread& one) {
  const unsigned lanes = one.mask & LiveLanesOf(warp);
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1) != 0 && !SameSite(threads_[warp * kWarp + lane], one)) return false;
  }
  Resolve(warp, lanes, one);
  return true;
}

void Block::Resolve(int warp, unsigned lanes, const Thread& one) {
  uint64_t values[kWarp] = {};
  uint64_t ballot = 0;
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    values[lane] = threads_[warp * kWarp + lane].value;
    if (values[lane] != 0) ballot |= uint64_t{1} << lane;
  }
  if (one.meeting == Meeting::kMma) ComputeMma(values);
  for (int lane = 0; lane < kWarp; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    Thread& thread = threads_[warp * kWarp + lane];
    if (one.meeting == Meeting::kBallot) thread.value = ballot;
    if (one.meeting == Meeting::kShuffle) {
      const bool there = thread.source < kWarp && (lanes >> thread.source & 1) != 0;
      thread.value = there ? values[thread.source] : ~uint64_t{0};
    }
    Release(warp * kWarp + lane);
  }
}

void Block::Stuck(const char* what) const {
  std::fprintf(stderr, "cuda_emulator: block (%u, %u, %u) of %d threads: %s\n", blockIdx.x,
               blockIdx.y, blockIdx.z, count_, what);
  std::vector<char> told(count_, 0);
  for (int i = 0; i < count_; ++i) {
    const Thread& one = threads_[i];
    if (one.meeting == Meeting::kNone || told[i] != 0) continue;
    int waiting = 0;
    for (int j = i; j < count_; ++j) {
      if (told[j] == 0 && threads_[j].meeting != Meeting::kNone && SameSite(one, threads_[j])) {
        told[j] = 1;
        ++waiting;
      }
    }
    std::fprintf(stderr, "  %d threads, the first is %d, wait at %s with mask %08x (%s:%d)\n",
                 waiting, i, NameOf(one.meeting), one.mask, one.site.file, one.site.line);
  }
  std::fprintf(stderr, "  %d threads have ended\n", ended_);
  std::abort();
}

Block& Running() {
  if (block == nullptr) {
    std::fprintf(stderr, "cuda_emulator: a device function was called outside of a kernel\n");
    std::abort();
  }
  return *block;
}

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

int MeetBlock(int predicate, Site site) { return Running().MeetOthers(predicate, site); }

uint64_t MeetWarp(Meeting meeting, unsigned mask, uint64_t value, int source, Site site) {
  return Running().MeetLanes(meeting, mask, value, source, site);
}

int Lane() { return Running().lane(); }
unsigned LiveLanes() { return Running().LiveLanesOf(Running().warp()); }
unsigned char* DynamicShared() { return Running().dynamic(); }

void RunGrid(const Grid& grid) {
  static thread_local Block kept;
  blockDim = grid.block;
  gridDim = grid.grid;
  const uint64_t blocks = uint64_t{grid.grid.x} * grid.grid.y * grid.grid.z;
  std::vector<uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), 0);
  const uint64_t seed = grid.shuffle_seed;
  if (seed != 0) {
    for (uint64_t i = blocks - 1; i > 0; --i) std::swap(order[i], order[Mix(seed + i) % (i + 1)]);
  }
  for (const uint64_t i : order) {
    const auto x = static_cast<unsigned>(i % grid.grid.x);
    const auto y = static_cast<unsigned>(i / grid.grid.x % grid.grid.y);
    const auto z = static_cast<unsigned>(i / grid.grid.x / grid.grid.y);
    kept.Run(grid, {x, y, z}, seed == 0 ? 0 : Mix(seed * 31 + i) | 1);
  }
}

}  // namespace emulated
