#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <string_view>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "sherd/autograd/parameter.h"
#include "sherd/autograd/variable.h"
#include "sherd/runtime/base/call_site.h"

namespace sherd {

namespace internal {
struct Node;
class Walk;
}  // namespace internal

// What an op is, for policies that decide what a checkpoint keeps.
enum class OpKind : uint8_t {
  kOther,
  kMatmul,
  kAttention,
  kNorm,
  kElementwise,
  kRandom,
  kView,
  kLoss,
  kRegion,
  // Talks to other ranks. Runs once for each forward: a checkpointed region keeps its results,
  // whatever its policy, and a recompute takes them.
  kCollective
};

// What there is to know of a tensor before it exists; for shapes known and memory not yet there.
struct TensorSpec {
  DType dtype = DType::kF32;
  Shape shape;
};

// What an op declares about one application before anything is computed.
struct OpPlan {
  absl::InlinedVector<TensorSpec, 2> outputs;  // allocated by Apply, unless `view`
  absl::InlinedVector<TensorSpec, 1>
      inner;                           // values only backward reads: a log-sum-exp, an inverse norm
  uint32_t backward_reads_inputs = 0;  // bit i: backward reads input i
  uint32_t backward_reads_outputs = 0;  // bit i: backward reads output i
  bool view = false;                    // the outputs alias inputs; Forward sets them
  double flops = 0;  // of the forward, where they are many: of matrix products and attention

  // Set by Apply before Plan. Bit i: somebody will want the gradient of input i, so what only that
  // gradient reads need not be kept otherwise: the input of a frozen weight.
  uint32_t wants_grad = 0;
  // backward_reads_inputs of a product of two: the gradient of each reads the other.
  uint32_t ReadsOfProduct() const { return (wants_grad & 1u) << 1 | (wants_grad >> 1 & 1u); }
};

// What is known of one application of an op before it computes, for policies.
struct OpInfo {
  OpKind kind = OpKind::kOther;
  std::string_view name;
  const Module* module = nullptr;  // whose call it is in; null outside of all
  int64_t ordinal = 0;             // among the ops of its checkpointed call
  int64_t bytes = 0;               // of its outputs and inner values
  double flops = 0.0;              // OpPlan::flops
  std::span<const TensorSpec> outputs;
};

// The operands of one forward computation. Outputs and inner values are allocated and undefined.
struct OpForward {
  std::span<const Tensor> inputs;
  std::span<Tensor> outputs;
  std::span<Tensor> inner;
  // Of ops of kind kRandom: differs between the random ops of a step, equal in a recompute.
  uint64_t random_key = 0;
  std::span<const int64_t> row_samples;
};

// Which dtypes an op can write a gradient in. The gradient of a parameter may be kept in another
// dtype than the value the op has read: in f32 where the parameter is gathered in 16 bits.
enum class GradDType : uint8_t {
  kOfInput,  // the input's own
  kWide,     // that, or f32 where the input has 16 bits
  kAnyFloat  // any
};

// What the backward of one recorded op sees.
class OpBackward {
 public:
  // Saved values. REQUIRES: declared in the plan; asking for others is an error that says so, in
  // any build.
  const Tensor& input(int i) const;
  const Tensor& output(int i) const;
  const Tensor& inner(int i) const;
  const TensorSpec& input_spec(int i) const;
  // The gradient of output i; undefined if nothing flowed into it.
  const Tensor& grad(int i = 0) const;
  // Gives the gradient of output i away, so that nobody here keeps its memory; grad(i) is then
  // undefined.
  Tensor TakeGrad(int i);
  uint64_t random_key() const;
  std::span<const int64_t> row_samples() const;

  // Whether anybody wants the gradient of input i.
  bool needs(int i) const;
  // Whether inputs i and j are one variable, which has one gradient.
  bool same(int i, int j) const;
  // The buffer for the gradient of input i, with what to do to it. Call it once per contribution,
  // and write that before asking for another target of the same variable.
  //
  // Its dtype is one that `accepts` names. Where the gradient is kept in such a dtype, this is the
  // very memory it is kept in, and nothing is rounded but by the op; else it is a buffer that is
  // cast and added to that memory once, before the next contribution and when the op returns.
  // Cost: the buffer has the size of the input and exists only where dtypes differ.
  GradTarget target(int i, GradDType accepts = GradDType::kOfInput);
  // Hands over a finished contribution, of the input's dtype. The tensor may be shared with others:
  // whoever adds to it later takes a copy first.
  void Pass(int i, Tensor gradient);

  // Whether the record is kept for another backward, so that nothing may be used up.
  bool retain() const;
  // The backward this is a part of, for regions that run one of their own.
  internal::Walk& walk() const { return walk_; }

 private:
  friend class internal::Walk;
  OpBackward(internal::Walk& walk, internal::Node& node, std::span<Tensor> grads)
      : walk_(walk), node_(node), grads_(grads) {}
  // What an op writes in place of a buffer of a dtype it does not accept.
  struct Staged {
    const internal::Ident* ident = nullptr;
    Tensor written;
    GradTarget kept;
  };
  const Tensor& Saved(size_t place, const char* what) const;
  // Adds what was staged for `ident`, or for all if null, to where it is kept.
  void Settle(const internal::Ident* ident);
  internal::Walk& walk_;
  internal::Node& node_;
  std::span<Tensor> grads_;
  absl::InlinedVector<Staged, 1> staged_;
};

// A differentiable function. Public: embedders write their own and check them with gradcheck.
//
// An op is a small value with its attributes, moved onto the tape when it is recorded; its methods
// change nothing. Plan checks every operand
// and throws before memory is touched; Forward and Backward are called only with what it accepted.
class Op {
 public:
  virtual ~Op() = default;
  // For messages, and mixed into the random key of a random op. REQUIRES: a string literal.
  virtual std::string_view name() const = 0;
  virtual OpKind kind() const { return OpKind::kOther; }
  // Errors: kInvalidArgument that names the operands at fault with their shapes, dtypes and
  // devices.
  virtual void Plan(std::span<const Tensor> inputs, OpPlan& plan) const = 0;
  // Writes every output and inner value, or sets the outputs of a view.
  virtual void Forward(OpForward& forward) const = 0;
  // Contributes to the gradient of every input that needs one. Called when at least one output has
  // a gradient.
  virtual void Backward(OpBackward& backward) const = 0;
};

namespace internal {

// An op on the caller's stack, and how to move it somewhere else: a tape's arena, which aligns to
// 16 bytes. The op on the stack is left as moving leaves it.
struct OpValue {
  Op& op;
  size_t bytes;
  Op* (*move_to)(Op& op, void* memory);
};

template <typename O>
OpValue ValueOf(O& op) {
  static_assert(alignof(O) <= 16);
  return {op, sizeof(O), [](Op& from, void* memory) -> Op* {
            return new (memory) O(std::move(static_cast<O&>(from)));
          }};
}

}  // namespace internal

}  // namespace sherd
