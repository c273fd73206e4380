#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/tensor.h"
#include "sherd/shard/axes.h"
#include "sherd/shard/layout.h"

namespace sherd {

class ShardContext;

// A gradient buffer's view for one parameter. `add`: it holds earlier contributions already.
struct UnitGradient {
  Tensor tensor;
  bool add = false;
};

// The gradients of one unit on their way: from the buffer that backward writes to the sums over all
// ranks that the optimizer reads.
//
// [Note: three sums]
// *Whole*: what this rank's calls have contributed, at level 0 of the cuts (see axes.h). *Cut*:
// what is reduced over the axes that cut the gradients. *Done*: reduced over all axes, at the level
// of the optimizer's pieces. A reduction moves whole into cut, finishing moves cut into done; each
// adds to what is there, so any pattern of the two gives the same sums, and a contribution is in
// exactly one of the three. Where a move would change nothing, because there is no axis between
// them, the two are the same memory: with one rank backward writes the done sums themselves, and
// plain data parallelism adds up in the whole buffer until it is finished.
//
// [Note: a gradient buffer belongs to a call]
// The whole sum is taken when backward enters the first scope. A reduction takes its memory away
// and frees it when done; the next call gets another buffer, so a slow reduction is never written
// over. To bound memory a new one waits until at most one reduction is in flight.
//
// Threads: the thread that runs the model. COLLECTIVE: Reduce, in one order on all ranks.
class GradientSums {
 public:
  struct Options {
    std::optional<DType> wire;  // of floating gradients between ranks; unset: their own
    bool offload = false;       // done sums are host memory
  };
  // Ownership: all outlive this object. `name` is for messages.
  GradientSums(const Layout& layout, const UnitAxes& axes, Options options, ShardContext& context,
               const std::string& name);

  // The unit's name in the context's event log.
  void set_event_unit(int unit) { event_unit_ = unit; }

  // A parameter that is not trainable takes no part; all ranks say the same. REQUIRES: nothing is
  // held.
  void SetTrainable(int i, bool trainable);
  bool trainable(int i) const { return trainable_[At(i)]; }

  // Makes the whole sum ready to be written. Waits until at most one reduction is in flight.
  void Open();
  // Where the next contribution to the gradient of parameter i goes. REQUIRES: after Open.
  UnitGradient Take(int i, const Shape& shape);
  // What a failed call has written is dropped, if it can be told from earlier sums.
  void Abandon() noexcept;

  // Moves the whole sums into the cut ones, and with `finish` those into the done ones; returns
  // while that is on its way. No effect on what is empty. With `agree` the ranks also tell each
  // other which parameters they used, for TakeAgreement once the reduction is done.
  void Reduce(bool finish, bool agree = false);
  void TakeAgreement();
  // Whether a call has opened the whole or the cut sums since they were last moved on.
  bool pending() const;
  // How often Reduce did something; with one rank, how often it was called.
  int64_t reductions() const { return reductions_; }

  // This rank's piece of the done sum of parameter i; undefined if there is none. Waits.
  Tensor Done(int i);
  // Whether some rank may have contributed to it: this one, or one that MarkUsed speaks for.
  bool used(int i) const { return used_[At(i)]; }
  void MarkUsed(int i) { used_[At(i)] = true; }
  // Forgets the sums of one parameter, or of all. The memory of the done sums stays where calls add
  // to it; where finishing only renames other sums to them, it is given back.
  void Clear(int i);
  void ClearAll();
  // The same, and gives the memory of the done sums back too.
  void Drop();

 private:
  enum Stop : uint8_t { kWhole = 0, kCut = 1, kDone = 2 };
  struct Sum {
    int level = 0;
    MemoryCategory category = MemoryCategory::kGradient;
    std::vector<Ref<Storage>> stores;  // one for each segment; empty: no memory
    std::vector<bool> holds;           // for each parameter, whether its place has a sum
    bool opened = false;
  };
  // One segment's way from one sum to the next; what a job on the reduce stream does.
  struct Move;

  static size_t At(int i) { return static_cast<size_t>(i); }
  const Sum& sum(Stop stop) const { return sums_[same_as_[stop]]; }
  Sum& sum(Stop stop) { return sums_[same_as_[stop]]; }
  bool Trains(const LayoutSegment& segment) const;
  int64_t Elems(size_t segment, int level) const;
  // The part of parameter i in this rank's piece at a level.
  LayoutPiece PieceAt(int i, int level) const;
  void Allocate(Sum& sum, size_t segment);
  void ZeroUnwritten(Sum& sum, size_t segment);
  // Makes the target ready and returns whether a move adds to it.
  bool PrepareTarget(Sum& target, size_t segment);
  Move MoveOf(Stop from, Stop to, size_t segment);
  void Pass(Stop from, Stop to, std::vector<Move>& moves);
  void FreeDone();
  static void Run(const Move& move, bool frees);
  // Sums `counts` over all ranks of the unit.
  void SumOverRanks(std::vector<int32_t>& counts, const ErrorContext& what) const;

  const Layout& layout_;
  const UnitAxes& axes_;
  const Options options_;
  ShardContext& context_;
  const std::string& name_;
  std::array<Sum, 3> sums_;
  std::array<size_t, 3> same_as_;  // which of sums_ each stop is
  std::vector<bool> trainable_;
  std::vector<bool> used_;
  std::shared_ptr<std::vector<int32_t>> use_counts_;  // on their way, after Reduce with `agree`
  int64_t reductions_ = 0;
  int event_unit_ = 0;
};

}  // namespace sherd
