#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sherd/runtime/core/tensor.h"
#include "sherd/shard/context.h"
#include "sherd/shard/layout.h"

namespace sherd {

// One parameter of a unit. The name is for messages; one that is not trainable is gathered and
// never reduced.
struct UnitParameter {
  std::string name;
  Shape shape;
  DType dtype = DType::kF32;
  bool trainable = true;
};

// What a unit does with its gathered parameters when its last open scope closes after a forward.
enum class AfterForward {
  kReshard,  // free them
  kKeep,     // hold them for the backward
  kForNow,   // hold them until a scope of another unit opens; see the note in context.h
};

// A full gradient buffer's view for one parameter. `add`: it holds earlier contributions of this
// call.
struct UnitGradient {
  Tensor tensor;
  bool add = false;
};

// The parameters that are gathered and reduced together: their shards, and the choreography of one
// call.
//
// Knows tensors, streams and groups, and nothing of tapes or modules: trainers with a hand-written
// backward call it directly, in this order for each call of the module:
//   EnterForward, (read full(i)), ExitForward; later BeginBackward, (write TakeGradient(i)),
//   EndBackward.
// Calls nest and repeat; a unit counts its open scopes, forward and backward, and reshards or
// reduces when the count returns to zero.
//
// Memory: the shard always; the gathered parameters from the first open scope to the last; one full
// gradient buffer from BeginBackward until its reduction is done; the gradient shard from the first
// reduction on. With one rank all of them are the shard and the gradient shard, without copies.
// Threads: the thread that runs the model. COLLECTIVE: scopes open and close in one order on all
// ranks.
class Unit final : public StorageOwner {
 public:
  Unit(std::string name, std::vector<UnitParameter> parameters,
       std::shared_ptr<ShardContext> context);
  ~Unit();
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;

  // As given, for messages and counts.
  const std::string& name() const { return name_; }
  const Layout& layout() const { return layout_; }
  int parameters() const { return static_cast<int>(parameters_.size()); }

  // The whole parameter, as a view that is resident while the unit is gathered.
  const Tensor& full(int i) const { return full_[At(i)]; }
  // The 1-D piece this rank owns, and its first element's index in the whole parameter.
  const Tensor& local(int i) const { return local_[At(i)]; }
  int64_t local_offset(int i) const { return layout_.PieceOf(i, context_->rank()).offset; }
  // Whether full(i) can be read, and whether a scope is open.
  bool unsharded() const { return unsharded_; }
  bool open() const { return forward_open_ + backward_open_ > 0; }
  bool in_backward() const { return backward_open_ > 0; }
  // The version that the open scope's copy was gathered at.
  int64_t gathered_version() const { return gathered_version_; }

  // Says where the version of the parameters can be asked, so that gathers can be started ahead,
  // and how many units after this one are gathered ahead when it is; see prefetch.h. Without a
  // source nothing is gathered ahead but what Prefetch is called for.
  void SetPrefetch(std::function<int64_t()> version_source, int depth);
  // Starts the gather that the next scope will need, and returns without waiting. Returns whether
  // it is on its way: false when the parameters are gathered already or nobody says their version.
  // COLLECTIVE: in one order on all ranks. Memory: the gathered parameters from now on.
  bool Prefetch();
  // Whether a gather ahead was started that no scope has used yet.
  bool ahead() const { return ahead_; }
  // Returns when no gather reads the shard, before it is written. Errors stay with the gather.
  void AwaitReaders() noexcept;
  // Frees what a gather ahead brought and no scope has used. No effect otherwise.
  void DropPrefetched();

  // `version` tells one state of the parameters from another: a copy gathered at an older one is
  // gathered again.
  void EnterForward(int64_t version);
  void ExitForward(AfterForward after);
  void BeginBackward(int64_t version);
  void EndBackward();
  // Leave a scope while unwinding: no communication, gradients of the call are dropped.
  void AbandonForward() noexcept;
  void AbandonBackward() noexcept;

  // Where the next contribution to the gradient of parameter i goes. REQUIRES: inside BeginBackward
  // and EndBackward.
  UnitGradient TakeGradient(int i);
  // The reduced gradient of local(i), or an undefined tensor if there is none. Waits for
  // reductions.
  Tensor LocalGradient(int i);
  // Like LocalGradient, but also when only other ranks may have contributed: then perhaps zeros.
  // Defined on all ranks alike.
  Tensor HeldGradient(int i);
  // Whether this rank contributed to the gradient of parameter i; MarkUsed says that another one
  // did.
  bool used(int i) const { return used_[At(i)]; }
  void MarkUsed(int i) { used_[At(i)] = true; }
  void ClearGradient(int i) { used_[At(i)] = holds_[At(i)] = false; }

  // Frees the gathered parameters now. No effect when they are not there, and with an open scope.
  void Reshard();
  // After a failure: no open scopes, no gradients, resharded.
  void Clear();

  // Collectives so far.
  int64_t gathers() const { return gathers_; }
  int64_t reductions() const { return reductions_; }

  std::string DescribeAbsent(const Storage& storage, int64_t byte_offset) const override;

 private:
  // The memory of one segment; its plan is layout_.segments() at the same index.
  struct SegmentState {
    Tensor shard;           // this rank's chunk
    Ref<Storage> full;      // the gathered flat space
    Ref<Storage> gradient;  // of the open call; empty otherwise
    Tensor gradient_shard;  // sums of all reductions; undefined before the first
  };
  static size_t At(int i) { return static_cast<size_t>(i); }
  // Makes the gathered parameters be there, as of `version`; waits for the gather.
  void Unshard(int64_t version);
  void StartGather(int64_t version);
  void AwaitGather();
  // The gradient buffer of a call: taken at its first scope, filled up with zeros and handed to the
  // reduction at its last. See the note in unit.cc.
  void TakeGradientBuffers();
  void FinishGradients();
  void ReduceSegment(size_t s);
  void ZeroUnwritten(size_t s);
  // Allocated at the first reduction, kept from then on.
  Tensor GradientShardOf(SegmentState& segment, size_t s);

  const std::string name_;
  const std::vector<UnitParameter> parameters_;
  const std::shared_ptr<ShardContext> context_;
  const Layout layout_;
  std::vector<SegmentState> segments_;
  std::vector<Tensor> full_;  // views, one for each parameter, as are the others
  std::vector<Tensor> local_;
  std::vector<bool> written_;  // in the gradient buffer of the open call
  std::vector<bool> used_;     // somebody contributed since its gradient was cleared
  std::vector<bool> holds_;    // its place in the gradient shard holds a sum, perhaps of zeros
  bool unsharded_ = false;     // gathered, or on the way
  bool ahead_ = false;         // gathered ahead, and no scope has opened since
  Work gather_;                // the last one
  int64_t gathered_version_ = 0;
  std::function<int64_t()> version_source_;
  int prefetch_depth_ = 0;
  int forward_open_ = 0;
  int backward_open_ = 0;
  int64_t gathers_ = 0;
  int64_t reductions_ = 0;
  const char* phase_ = "not called yet";
};

}  // namespace sherd
