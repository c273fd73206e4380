#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "sherd/autograd/variable.h"
#include "sherd/runtime/kernels/write.h"

namespace sherd {

class Module;

// How a parameter gets its first values. They depend on the seed, the parameter's full name and the
// element's index in the full tensor alone: any rank can fill its piece without the rest.
struct Initializer {
  enum class Kind { kConstant, kNormal, kUniform };
  Kind kind = Kind::kConstant;
  double a = 0.0;  // the constant, the mean, or the lower end
  double b = 0.0;  // the standard deviation, or the upper end

  static Initializer Constant(double value) { return {Kind::kConstant, value, 0.0}; }
  static Initializer Normal(double stddev) { return {Kind::kNormal, 0.0, stddev}; }
  static Initializer Uniform(double low, double high) { return {Kind::kUniform, low, high}; }
};

// A gradient buffer and what to do with its contents; see kernels::Write.
struct GradTarget {
  Tensor tensor;
  kernels::Write write = kernels::Write::kOverwrite;
};

// Who holds a parameter's memory when it is not the parameter itself: a shard unit. This is the
// only way autograd knows of sharding.
class ParameterHost {
 public:
  // Called before a recorded op reads parameter `index`. Errors: kFailedPrecondition if no scope of
  // the host is open, naming the parameter.
  virtual void CheckRead(int index) const = 0;
  // Where the next contribution to the gradient of parameter `index` goes: a tensor of the full
  // shape, of any float dtype. What is written in another one is cast before it is added.
  virtual GradTarget TakeGradTarget(int index) = 0;
  // The gradient of the local piece, or an undefined tensor when there is none.
  virtual Tensor LocalGrad(int index) const = 0;
  virtual void ClearGrad(int index) = 0;
  // Called before the local piece of parameter `index` is written: returns when nothing reads it in
  // the background.
  virtual void AwaitReaders(int index) = 0;
  // Whether a backward of the host is open, so that gradients are not handed on yet.
  virtual bool InBackward(int index) const = 0;
  // Called when requires_grad of parameter `index` has changed. Errors: what it throws leaves the
  // parameter as it was; kFailedPrecondition naming the parameter is for a host that is in the
  // middle of a call or a backward.
  virtual void RequiresGradChanged(int /*index*/) {}

 protected:
  ~ParameterHost() = default;
};

namespace internal {

struct ParameterState final : Ident {
  const Module* module = nullptr;
  std::string leaf_name;
  Shape shape;
  DType dtype = DType::kF32;
  Initializer initializer;
  int64_t version = 0;
  Tensor value;  // the full tensor; of a hosted parameter a view that is resident while gathered
  Tensor local;  // 1-D
  int64_t local_offset = 0;
  ParameterHost* host = nullptr;
  int host_index = -1;
  bool has_grad = false;  // of a parameter without host: `grad` holds a sum
};

}  // namespace internal

// A trainable tensor of a module: its name, shape and dtype, and the piece of it this rank owns.
//
// A handle: cheap to copy; a copy is the same parameter, which is how weights are tied. It has no
// memory before it is initialised or loaded. Sharding changes where its elements are, never what it
// is: name(), shape() and requires_grad() stay.
class Parameter {
 public:
  Parameter() = default;

  bool defined() const { return static_cast<bool>(state_); }
  // The full name, from the root of the module tree: "blocks.3.attention.wq".
  std::string name() const;
  const Shape& shape() const { return state_->shape; }
  int64_t numel() const { return state_->shape.numel(); }
  DType dtype() const { return state_->dtype; }
  bool requires_grad() const { return state_->requires_grad; }
  // Freezes or unfreezes, for what is recorded from now on: what a tape holds already goes on as it
  // was recorded, but a checkpointed call that would run again is refused in its backward.
  // Of a sharded parameter: between steps, on all ranks alike. Errors: kFailedPrecondition naming
  // the parameter where its host is in the middle of a call or a backward; nothing has changed
  // then.
  void set_requires_grad(bool requires_grad) const;
  const Initializer& initializer() const { return state_->initializer; }

  // The parameter as an operand of ops. Errors: kFailedPrecondition if it has no memory yet.
  Variable variable() const;
  operator Variable() const { return variable(); }  // NOLINT(google-explicit-constructor)

  // The contiguous 1-D piece this rank owns, possibly empty: elements [local_offset(),
  // local_offset() + local().numel()) of the full tensor in row-major order. All of it when the
  // parameter is not sharded. Undefined before initialisation.
  const Tensor& local() const { return state_->local; }
  int64_t local_offset() const { return state_->local_offset; }
  // local() for writing: raises the version, so that a backward of an older forward is refused, and
  // waits for a gather that was started ahead and still reads it.
  Tensor MutableLocal() const;
  // The gradient of local(), summed over all backwards (and ranks) since ClearGrad(); undefined
  // when there is none. The memory belongs to the parameter's host.
  Tensor local_grad() const;
  void ClearGrad() const;

  // Calls `hook` once in each backward that contributes to this parameter, after the last
  // contribution, however many ops and calls read it, also under a checkpoint. Of a sharded
  // parameter: when the call that made it has handed its gradients to the reduction; reading
  // local_grad() waits for that. The rest of the backward does not read the parameter any more, so
  // a hook may change it.
  // Ownership: the parameter keeps the hook until ClearHooks. Errors: what a hook throws, the
  // backward throws, with the module path.
  void OnGradient(std::function<void(const Parameter&)> hook) const;
  // Calls `hook` once in each accumulation window, when local_grad() is the whole gradient of the
  // window: the sum of all its backwards and of all ranks, divided as the window says, not yet
  // clipped. The hook may change it in place. Of a parameter without a window: never.
  // Ownership: as OnGradient. COLLECTIVE: added on all ranks or on none, if it calls collectives;
  // it runs on every rank that holds a part, in the order of Module::parameters().
  // Errors: what a hook throws, the window throws, with the module path.
  void OnWindowGradient(std::function<void(const Parameter&)> hook) const;
  // Forgets the hooks of both kinds.
  void ClearHooks() const;

  // Raised by every change of the values.
  int64_t version() const { return state_->version; }

  friend bool operator==(const Parameter& a, const Parameter& b) { return a.state_ == b.state_; }

  // For modules, hosts and the tape.
  explicit Parameter(Ref<internal::ParameterState> state) : state_(std::move(state)) {}
  internal::ParameterState& state() const { return *state_; }
  const Ref<internal::ParameterState>& ref() const { return state_; }

 private:
  Ref<internal::ParameterState> state_;
};

namespace internal {
// Where the next contribution to this parameter's gradient goes, hosted or not.
GradTarget TakeParameterGrad(ParameterState& parameter);
}  // namespace internal

}  // namespace sherd
