#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sherd {

class ShardContext;
class Unit;

// Who divides the gradients of a model, which its units sum over all ranks. Read from the root: the
// outermost unit around a module.
enum class ScaleBy : uint8_t {
  // As kWindow while an Accumulation of the model lives, as kUnitDivisor else.
  kAuto,
  // A window, by what its losses count. A backward that no window runs is refused.
  kWindow,
  // The units, by the number of ranks of their mesh: Tape::Backward is given a scalar that was
  // averaged over this rank's own batch, of the same size on all ranks. No Accumulation is allowed.
  kUnitDivisor,
  // Nobody here: gradients are sums over the ranks, of windows too.
  kCaller,
};

// [Note: who scales]
// Units sum, and exactly one owner divides. Where the units own it, the seeds of the outermost
// backward are multiplied by 1 / ranks: once, before anything runs, at no cost for each op or
// gradient; what a checkpoint computes again gets gradients that are scaled already. Where an
// Accumulation owns it, its windows scale their seeds, and a backward that bypasses them is an
// error.

// Who owns the scale of each root of one mesh. Of ShardContext; for those who extend the library.
//
// Threads: the one that runs the model.
class ScaleOwner {
 public:
  explicit ScaleOwner(const ShardContext& context) : context_(context) {}
  ScaleOwner(const ScaleOwner&) = delete;
  ScaleOwner& operator=(const ScaleOwner&) = delete;

  // Makes the windows of `window_name` the owner of what `root`, whose option is `by`, sums. With
  // kCaller there is none, and nothing happens.
  // Errors: kFailedPrecondition, with nothing changed, under kUnitDivisor, and while others own it;
  //   the message names both.
  void Acquire(const Unit& root, ScaleBy by, const std::string& window_name);
  // Nothing if `window_name` is not the owner.
  void Release(const Unit& root, const std::string& window_name) noexcept;

  // What the seeds of a backward that will enter `root` or a unit inside it are multiplied by.
  // Errors: kFailedPrecondition where windows divide and the backward is not theirs, naming them.
  double SeedFactor(const Unit& root, ScaleBy by);

 private:
  friend class WindowScale;
  struct Owned {
    const Unit* root;
    std::string by;
  };
  const Owned* Find(const Unit& root) const;
  bool reported(ScaleBy owner) const { return (reported_ >> static_cast<int>(owner) & 1u) != 0; }
  // Logs who divides, on rank 0, the first time that it is this one.
  void Report(ScaleBy owner, const std::string& text);

  const ShardContext& context_;
  std::vector<Owned> owned_;
  int windows_ = 0;        // backwards of windows that run
  uint32_t reported_ = 0;  // a bit for each ScaleBy
};

}  // namespace sherd
