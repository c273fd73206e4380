#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "sherd/autograd/op.h"
#include "sherd/autograd/parameter.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/log.h"

namespace sherd {
class ScopeObserver;
}

namespace sherd::internal {

using Tensors = absl::InlinedVector<Tensor, 2>;

// A parameter, the version of it that was read, and whether its gradient was wanted then.
struct ParameterRead {
  Ref<ParameterState> parameter;
  int64_t version = 0;
  bool wanted = false;
};

// What happens to one op of a region when the region runs again.
enum class Replayed : uint8_t {
  kComputed,
  kKept,    // its outputs and inner values come from the first pass
  kSkipped  // it is recorded, its outputs have no values: nobody reads them
};

// What the first pass kept of one op.
struct KeptValues {
  Tensors outputs;
  Tensors inner;
};

// One op of a region, in the order of the first pass. A nested region is one op.
struct OpNote {
  std::string_view name;
  OpKind kind = OpKind::kOther;
  bool wants_grad = false;
  bool is_view = false;
  bool reads_outputs = false;                  // backward reads outputs
  bool reads_own = false;                      // backward reads outputs or inner values
  bool host_read = false;                      // the program itself reads the outputs' values
  bool needed = false;                         // anybody reads the outputs' values
  uint32_t reads_inputs = 0;                   // bit i: backward reads input i
  uint32_t first_producer = 0, producers = 0;  // in RegionNotes::producers
  uint32_t first_spec = 0, specs = 0;          // in RegionNotes::specs
  int32_t kept = -1;                           // in RegionNotes::kept
  Replayed replayed = Replayed::kComputed;
  int64_t output_bytes = 0;
  int64_t inner_bytes = 0;
  int64_t moved_bytes = 0;  // read and written by the forward
  double flops = 0.0;       // OpPlan::flops
};

// Decides what a recompute does with each op, and which outputs anybody reads: sets `replayed` and
// `needed`. An op is kept if `kept` is set in its note and somebody reads its results.
//
// `producers` are RegionNotes::producers. Also how planners try out what keeping an op would save.
void DecideReplay(std::span<OpNote> ops, std::span<const int32_t> producers, bool early_stop);

// What a kept op holds after DecideReplay: inner values, and outputs if anybody reads them.
int64_t KeptBytes(const OpNote& note);

// A ScopeObserver that gathers something while its scope is open, and again for the backward: what
// a region around several of them pays for once more.
class GatheringScope {
 public:
  // Says something to the people who run the program.
  virtual void Report(LogLevel level, std::string_view text) = 0;
  // True the first time it is called: for reports that are made once.
  virtual bool TakeFirst() = 0;

 protected:
  ~GatheringScope() = default;
};

// What the first pass of a checkpointed region touched and did; a recompute must do the same.
//
// [Note: early stop] An op needs to be computed again if a computed op or a backward reads its
// outputs, or if its own backward reads its outputs or inner values. Who reads what is known after
// the first pass: inputs are traced to the ops that wrote them by their storage, which also finds
// detached variables and views. Reads by the program itself are seen by watching the storages. The
// recompute still runs the whole body, so that brackets stay paired and every output has an
// identity; ops nobody needs are recorded with outputs that have no values.
class RegionNotes {
 public:
  // Chooses what to keep, before an op computes. Empty: nothing.
  using KeepRule = std::function<bool(const OpInfo&)>;
  explicit RegionNotes(KeepRule rule) : keep_rule(std::move(rule)) {}

  // Notes the identities an op reads from outside. Births up to `first_birth` are outside.
  void NoteInputs(std::span<const Variable* const> inputs, uint64_t first_birth);
  // Notes an op that was computed.
  void NoteOp(const Op& op, const OpPlan& plan, std::span<const Variable* const> inputs,
              std::span<const Tensor> outputs);
  // Whether `info`'s results are to be kept. Not inside a nested region, which runs again anyway.
  bool Keeps(const OpInfo& info) const;
  // Keeps the results of the op that was noted last; inside a nested region, those of a collective.
  void Keep(KeptValues values);
  // Bracket a nested region.
  void EnterNested();
  void LeaveNested();
  // The program reads a value itself.
  void NoteHostRead(const Storage& storage);
  // Bracket a call that `observer` observes. Calls of one observer inside each other are one.
  void OpenScope(ScopeObserver& observer, bool is_always_live);
  void CloseScope();
  // Decides what a recompute computes, and gives up what was kept and nobody reads.
  void Decide(bool early_stop);

  KeepRule keep_rule;
  std::vector<Ref<Ident>> outer;          // variables from outside that want a gradient, each once
  std::vector<ParameterRead> parameters;  // each once
  std::vector<OpNote> ops;
  std::vector<int32_t> producers;  // of each input of each op: the op that wrote it, -1: outside
  std::vector<TensorSpec> specs;   // of each output of each op
  std::vector<KeptValues> kept;
  int64_t kept_bytes = 0;
  int64_t recorded = 0;    // ops that want a gradient, those of nested regions included
  int64_t gatherings = 0;  // calls with a GatheringScope
  GatheringScope* first_gathering = nullptr;  // that of the first of them
  std::vector<ScopeObserver*> observers;      // of the calls inside, each once
  bool always_live = false;  // one of the calls matters to a backward whatever it computes
  // [Note: collectives in nested regions] A nested region runs again from its first op, so the
  // outermost region keeps the results of its collectives too, in the order they ran; in the
  // recompute the first pass of the nested region takes them in turn, and keeps them for its own.
  std::vector<KeptValues> nested_kept;

 private:
  int32_t ProducerOf(const Tensor& tensor) const;
  absl::flat_hash_set<const Ident*> seen_;
  absl::flat_hash_map<const Storage*, int32_t> written_by_;
  std::vector<const ScopeObserver*> open_scopes_;
  int nested_ = 0;
};

// Says why a value is absent that a recompute did not compute.
class SkippedValues final : public StorageOwner {
 public:
  explicit SkippedValues(std::string region) : region_(std::move(region)) {}
  // An output of `op` without memory.
  static Tensor Make(const std::shared_ptr<SkippedValues>& owner, const Device& device,
                     const TensorSpec& spec, std::string_view op);
  std::string DescribeAbsent(const Storage& storage, int64_t byte_offset) const override;

 private:
  const std::string region_;
  std::vector<std::pair<const Storage*, std::string_view>> made_;
};

// The second run of a region, guided by the notes of the first.
class Replay {
 public:
  // `retain`: the region may run a third time.
  Replay(RegionNotes& notes, std::string region, bool retain);

  // What to do with the next op. Errors: kFailedPrecondition "recompute differs" naming both ops.
  const OpNote& Next(std::string_view name);
  // Errors: kFailedPrecondition "recompute differs" with both shapes.
  void CheckOutputs(const OpNote& note, std::span<const TensorSpec> outputs) const;
  // The values kept of an op; given away unless they are needed again.
  KeptValues Take(const OpNote& note);
  // Those of the next collective of a nested region, whose outputs have `outputs` now; see [Note:
  // collectives in nested regions]. Errors: kFailedPrecondition "recompute differs".
  KeptValues TakeNested(std::string_view name, std::span<const TensorSpec> outputs);
  // Throws kFailedPrecondition "recompute differs in <region>: <how>".
  [[noreturn]] void Differs(std::string_view how) const;
  const std::shared_ptr<SkippedValues>& skipped() const { return skipped_; }
  // Ops seen so far.
  int64_t ordinal() const { return ordinal_; }
  int64_t computed() const { return computed_; }
  double computed_flops() const { return computed_flops_; }

 private:
  RegionNotes& notes_;
  const bool retain_;
  const std::shared_ptr<SkippedValues> skipped_;
  const std::string region_;
  int64_t ordinal_ = 0;
  int64_t computed_ = 0;
  double computed_flops_ = 0.0;
  size_t nested_ = 0;  // in RegionNotes::nested_kept
};

}  // namespace sherd::internal
