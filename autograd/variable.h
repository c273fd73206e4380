#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "sherd/runtime/base/pooled.h"
#include "sherd/runtime/base/ref.h"
#include "sherd/runtime/core/tensor.h"

namespace sherd {

namespace internal {

// Where a variable was born: one generation of a tape, or one checkpointed region. A variable may
// be used in a recording only while its home is part of it.
struct Home final : RefCounted {
  explicit Home(std::string description) : description(std::move(description)) {}
  std::string description;  // "a tape that was reset", "the checkpointed region model.blocks.3"
};

class GradTable;
struct Hooks;

// The identity gradients belong to. Apart from the value, so that a tape can know who gets a
// gradient without keeping memory that no backward reads.
struct Ident : RefCounted, Pooled<Ident> {
  Ident();
  virtual ~Ident();

  bool requires_grad = true;
  bool is_parameter = false;
  uint32_t slot = 0;           // in `table`
  GradTable* table = nullptr;  // of the running backward that holds a gradient of it
  uint64_t birth = 0;          // order of birth on a tape and its nested ones; 0 for leaves
  uint64_t mark = 0;           // the last walk that needs this gradient
  Ref<Home> home;              // empty for leaves
  Tensor grad;                 // of a leaf that is no parameter: the sum of all backwards so far
  std::unique_ptr<Hooks> hooks;
};

}  // namespace internal

// A tensor and, if a gradient is wanted, the identity that gradient belongs to.
//
// A handle: cheap to copy, copies are the same variable. Without identity it is a constant.
// Ownership: keeps the value's memory; a tape keeps only what its backward reads.
class Variable {
 public:
  Variable() = default;
  // A constant.
  Variable(Tensor value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  // A variable whose gradient the caller wants; grad() has it after a backward. Errors:
  // kInvalidArgument for an undefined tensor or one of integers.
  static Variable Leaf(Tensor value);

  // False for a default-constructed one.
  bool defined() const { return value_.defined(); }
  const Tensor& value() const { return value_; }
  const Shape& shape() const { return value_.shape(); }
  DType dtype() const { return value_.dtype(); }
  int64_t dim(int i) const { return value_.dim(i); }
  // Whether a backward would compute a gradient for it.
  bool requires_grad() const { return ident_ && ident_->requires_grad; }

  // The same value as a constant: no gradient flows through it.
  Variable Detach() const { return Variable(value_); }
  // Of a leaf: the summed gradient of all backwards since ClearGrad; undefined before the first.
  Tensor grad() const { return ident_ ? ident_->grad : Tensor(); }
  // Forgets it. Copies of this variable see that too.
  void ClearGrad() const {
    if (ident_) ident_->grad = Tensor();
  }

  // Calls `hook` with the whole gradient of this variable, once in each backward that gives it one:
  // after the last contribution, before anything is computed from it. What the hook returns takes
  // the gradient's place; it may return its argument. Hooks run in the order they were added, with
  // recording off, and go with the variable. Errors: kFailedPrecondition for a constant,
  // kInvalidArgument for a parameter (which has its own hooks); what a hook throws, the backward
  // throws, with the module path.
  void OnGradient(std::function<Tensor(const Tensor&)> hook) const;

  // For the tape, the seams and those who extend them.
  Variable(Tensor value, Ref<internal::Ident> ident)
      : value_(std::move(value)), ident_(std::move(ident)) {}
  const Ref<internal::Ident>& ident() const { return ident_; }

 private:
  Tensor value_;
  Ref<internal::Ident> ident_;
};

}  // namespace sherd
