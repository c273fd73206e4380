#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace sherd {

// Where something ran: the thread of the model, or the stream of gathers or of reductions. On one
// lane events nest or follow each other; they never overlap otherwise.
enum class EventLane : uint8_t { kCompute, kGather, kReduce };

enum class EventKind : uint8_t {
  kScope,       // a unit's call: from the gather asked for to the scope closed
  kCollective,  // on the gather or reduce lane, or on kCompute for what the model's thread calls
  kWait,        // compute waits for the collective named by `op`: exposed communication
  kReshard,     // an instant: gathered parameters are freed
  kUpdate,      // the optimizer runs
  kStep,        // a whole window; `sequence` is the step's number
};

// Which part of a step asked for it.
enum class EventPhase : uint8_t { kNone, kForward, kRecompute, kBackward, kFinish };

// What is sent, for kCollective and kWait.
enum class EventOp : uint8_t {
  kNone,
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kBarrier
};

// What a record says of its event. A collective writes three: asked for, begun, ended.
enum class EventPoint : uint8_t { kEnqueue, kBegin, kEnd, kInstant };

// "compute", "gather", ...: as traces and dumps name them.
std::string_view NameOf(EventLane lane);
std::string_view NameOf(EventKind kind);
std::string_view NameOf(EventPhase phase);
std::string_view NameOf(EventOp op);
std::string_view NameOf(EventPoint point);

// One record of the event stream. Copying is cheap.
//
// Times are nanoseconds of EventLog::Now(), 0 while they lie ahead. A record of kEnd has all that
// its event went through if the event that Begin returned was handed to End; otherwise it belongs
// to the latest one begun on its lane of the same kind, phase, op and unit.
struct Event {
  EventKind kind = EventKind::kScope;
  EventPoint point = EventPoint::kInstant;  // set by whoever records
  EventLane lane = EventLane::kCompute;
  EventPhase phase = EventPhase::kNone;
  EventOp op = EventOp::kNone;
  int unit = 0;          // from EventLog::Intern; 0 is nobody in particular
  int64_t sequence = 0;  // counts events of one kind, op and unit: pairs records on two lanes
  int64_t bytes = 0;     // what this rank sends and receives together
  int64_t enqueue_ns = 0;
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  uint64_t index = 0;  // place in the log, from 0; set by the log
};

struct EventLogOptions {
  // Of the process that writes, for traces of several.
  int rank = 0;
  // The latest so many records are kept, rounded up to a power of 2; 64 bytes each. A step writes
  // about 20 for each call of a unit.
  int64_t capacity = int64_t{1} << 15;
  // Nanoseconds that never fall; null: the steady clock. Must be safe to call from any thread.
  int64_t (*clock)() = nullptr;
};

// The stream of events of one rank: what traces, step figures and the flight recorder read.
//
// A ring that overwrites its oldest records. How to emit: keep an `EventLog*`, null when events are
// off, which costs one branch; intern names when units are made; then
//
//   Event e{.kind = EventKind::kCollective, .lane = EventLane::kGather, .phase = phase,
//           .op = EventOp::kAllGather, .unit = unit, .sequence = ++gathers_, .bytes = bytes};
//   if (log != nullptr) e = log->Enqueue(e);          // on the model's thread
//   stream.Enqueue([=] { const EventSpan running(log, e); ... });  // begun, ended
//   { const EventSpan waiting(log, {.kind = EventKind::kWait, .op = e.op, ...}); work.Wait(); }
//
// and Begin and End where a scope opens and closes in two functions.
// Threads: safe, for writers and readers; no locks but in Intern and NameOf. Cost: two uncontended
// atomic updates and 64 bytes written for a record; nothing is allocated after the constructor but
// by Intern.
class EventLog {
 public:
  // Ownership: the caller's; it must outlive whoever writes. Errors: kInvalidArgument for a
  // capacity below 1 or above 2^30.
  explicit EventLog(EventLogOptions options = {});
  ~EventLog();
  EventLog(const EventLog&) = delete;
  EventLog& operator=(const EventLog&) = delete;

  int rank() const { return rank_; }
  int64_t capacity() const { return static_cast<int64_t>(mask_) + 1; }
  int64_t Now() const { return clock_(); }
  // What to add to Now() for nanoseconds since 1970: traces of several hosts share that.
  int64_t wall_offset_ns() const { return wall_offset_ns_; }

  // The number of a name, the same for the same name; at least 1. For registration, not for steps.
  int Intern(std::string_view name);
  // The name that was interned; empty for 0 and for unknown numbers.
  std::string NameOf(int unit) const;

  // Writes a record as it is, but for its index.
  void Add(const Event& event);
  // Write a record of that point, now; return the event with its time filled in.
  Event Enqueue(Event event);
  Event Begin(Event event);
  Event End(Event event);
  void Instant(Event event);

  // How many records there were so far: marks a place for Read.
  uint64_t position() const { return next_.load(std::memory_order_acquire); }
  // The records from place `from` up to `to` that the ring still has, in the order of their
  // places. Left out are those being written just now and those a slower writer lost its place to.
  std::vector<Event> Read(uint64_t from = 0, uint64_t to = UINT64_MAX) const;

 private:
  struct Slot;

  const int rank_;
  int64_t (*const clock_)();
  const int64_t wall_offset_ns_;
  uint64_t mask_ = 0;
  std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> next_{0};
  mutable std::mutex names_mutex_;
  std::vector<std::string> names_;
};

// Begins an event when it is made and ends it when it is destroyed, also by an exception. Nothing
// for a null log. Threads: one.
class EventSpan {
 public:
  EventSpan(EventLog* log, const Event& event) : log_(log) {
    if (log_ != nullptr) event_ = log_->Begin(event);
  }
  ~EventSpan() {
    if (log_ != nullptr) log_->End(event_);
  }
  EventSpan(const EventSpan&) = delete;
  EventSpan& operator=(const EventSpan&) = delete;

 private:
  EventLog* const log_;
  Event event_;
};

}  // namespace sherd
