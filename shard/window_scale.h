#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sherd/autograd/module.h"
#include "sherd/runtime/base/call_site.h"
#include "sherd/shard/scale.h"

namespace sherd {

class ShardContext;
class Unit;

// [Note: a lease]
// An Accumulation acquires every root of its model when it is made, and gives them back when it and
// the last of its windows are gone. Two models on one mesh may each have one.

// Owns the scale of all roots of a model while it lives: what an Accumulation holds. Does nothing
// for a model that is not sharded.
class WindowScale {
 public:
  // Errors: those of ScaleOwner::Acquire; kFailedPrecondition while a unit of the model holds
  //   gradients, which others have scaled, naming the parameter; kInvalidArgument if a unit inside
  //   says other than its root, naming both.
  WindowScale(const Module& model, CallSite site);
  ~WindowScale();
  WindowScale(const WindowScale&) = delete;
  WindowScale& operator=(const WindowScale&) = delete;

  // Whether windows divide; false with ScaleBy::kCaller: they hand out plain sums.
  bool divides() const { return divides_; }

  // While it lives, backwards over the model are a window's, whose seeds are scaled already.
  // Allocates nothing.
  class Backward {
   public:
    explicit Backward(const WindowScale& scale) : scale_(scale) { scale_.Count(1); }
    ~Backward() { scale_.Count(-1); }
    Backward(const Backward&) = delete;
    Backward& operator=(const Backward&) = delete;

   private:
    const WindowScale& scale_;
  };

 private:
  struct Root {
    std::shared_ptr<ShardContext> context;
    const Unit* unit;
  };
  // Gives back what was acquired; also where the constructor throws.
  void Release() noexcept;
  // Counts backwards of windows that run.
  void Count(int change) const;

  std::string name_;
  std::vector<Root> roots_;  // whose scale is owned
  std::vector<std::shared_ptr<ShardContext>> contexts_;
  bool divides_ = true;
};

}  // namespace sherd
