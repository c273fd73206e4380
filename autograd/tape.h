#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sherd/autograd/call.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

namespace internal {
class RegionNotes;
class TapeImpl;
struct Recorder;
}  // namespace internal

// Told when backward enters and leaves one recorded call. See [Note: scopes].
class ScopeObserver {
 public:
  // Before the first op of the call runs backward: what the ops read must be there.
  virtual void BackwardEnter() = 0;
  // After the last: every gradient of this call has been accumulated.
  virtual void BackwardExit() = 0;
  // The backward failed while the call was entered: undo, without communication. Never throws.
  virtual void BackwardAbandon() noexcept = 0;
  // The whole backward in which calls of this observer were left has ended: once, however many
  // calls, also of calls that ran again for a checkpoint. Not after a failure.
  virtual void BackwardEnded() {}
  // What the seeds of a backward that will enter a call of this observer are multiplied by; none:
  // it has no say. Asked before anything runs, and not in a backward run by a hook of one that was
  // scaled. Those that have a say agree, or the backward is refused. May throw, to refuse it too.
  virtual std::optional<double> SeedFactor() { return std::nullopt; }

 protected:
  ~ScopeObserver() = default;
};

// [Note: scopes]
// A tape is an ordered list. A call somebody observes writes an opening and a closing bracket
// around the ops it records: one scope per call, never per module. Backward walks in reverse, meets
// the closing bracket before any op of the call and the opening one after all of them, whatever the
// inputs are and however often the module ran. A scope none of whose ops the loss depends on is
// skipped.

struct BackwardOptions {
  // Keeps what the record has saved, for another backward over the same ops. Costs the memory that
  // is else given up as the backward goes.
  bool retain = false;
};

// A linear record of ops and scopes, from which gradients are computed. Reusable after Reset().
//
// Several backwards may run over one record, each over the ops its roots depend on: two losses in
// turn, or the pieces of a pipeline. An op whose saved values an earlier backward gave up is an
// error before anything is computed. Recording may go on after a backward.
// Threads: one at a time.
class Tape {
 public:
  Tape();
  ~Tape();
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Adds d(root)/d(p) times `seed` to the gradient of every parameter and leaf `root` depends on.
  //
  // Saved values are given up as soon as they were read, unless they are retained. Runs with
  // recording off. With several roots the sum of all products is added; a root may depend on
  // another one, or be given twice. A seed is also how a gradient computed elsewhere is fed in.
  // Observers of calls may scale all seeds, each once: see ScopeObserver::SeedFactor.
  // Shapes: root has one element; each seed has its root's shape, dtype and device.
  // Ownership: seeds are read, never written or kept.
  // Errors: kFailedPrecondition inside an open scope of this tape (naming the module) or a hook of
  //   its backward, if two observers would scale the seeds differently, for a root of another tape,
  //   for an op whose saved values are gone (naming it and its module), or if a parameter changed
  //   since the forward; sherd::Error of an op or a hook, with its module path. After an error
  //   nothing is left on its way; sums that already reached parameters stay.
  void Backward(const Variable& root, double seed = 1.0, BackwardOptions options = {},
                CallSite site = CallSite::Here());
  void Backward(std::span<const Variable> roots, std::span<const Tensor> seeds,
                BackwardOptions options = {}, CallSite site = CallSite::Here());
  // The same for a list in braces: Backward({a, b}, {grad_a, grad_b}).
  void Backward(std::initializer_list<Variable> roots, std::initializer_list<Tensor> seeds,
                BackwardOptions options = {}, CallSite site = CallSite::Here()) {
    Backward(std::span(roots.begin(), roots.size()), std::span(seeds.begin(), seeds.size()),
             options, site);
  }

  // Forgets everything; variables recorded before can no longer be used in a recording. Errors:
  // kFailedPrecondition in a hook of a backward over this tape.
  void Reset();

  // Recorded ops, for tests and reports.
  int64_t ops() const;

  internal::TapeImpl& impl() const { return *impl_; }

 private:
  std::unique_ptr<internal::TapeImpl> impl_;
};

struct RecordingOptions {
  // For random ops: the seed of the run and the step within it.
  uint64_t seed = 0;
  int64_t step = 0;
  // The global index of each row's sample: what makes dropout masks independent of how samples are
  // spread over ranks and micro-batches. Needed only where random ops run.
  std::vector<int64_t> samples;
};

// While it lives, ops of this thread are recorded on `tape`. Without one nothing is recorded, which
// is how evaluation runs. Guards nest; the innermost counts.
class Recording {
 public:
  explicit Recording(Tape& tape, RecordingOptions options = {});
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Changes the samples for the calls that follow, for micro-batches that run in several calls.
  // REQUIRES: no module call of this recording is open.
  void SetSamples(std::vector<int64_t> samples);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Whether a Recording is on for this thread, a checkpointed first pass included.
bool IsRecording();

// Whether the code runs a second time, inside a backward, for a checkpoint: what counts calls or
// keeps a running statistic changes it only where this is false. The first pass of a checkpoint
// inside another one's recompute is a second time too.
bool InRecompute();

// The tape this thread records on; null without a Recording.
Tape* CurrentTape();

// The brackets of one call on the current tape, for interceptors.
class ScopeGuard {
 public:
  // Opens a scope if this thread records on a tape; otherwise does nothing. `observer` must outlive
  // the tape's record. `always_live` scopes are entered in backward even if no op inside matters.
  ScopeGuard(ScopeObserver& observer, const Module* module, bool always_live = false);
  // Closes it. Also while unwinding: brackets stay paired.
  ~ScopeGuard();
  ScopeGuard(const ScopeGuard&) = delete;
  ScopeGuard& operator=(const ScopeGuard&) = delete;

  // Whether the recording is a recompute inside a backward.
  static bool InRecompute();
  // Whether ops are recorded on a tape now (false in evaluation and in a checkpointed first pass).
  static bool OnTape();

 private:
  internal::TapeImpl* tape_ = nullptr;
  internal::RegionNotes* region_ = nullptr;  // whose first pass this is
  int64_t open_ = -1;
};

}  // namespace sherd
