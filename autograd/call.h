#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "sherd/autograd/module.h"
#include "sherd/autograd/variable.h"
#include "sherd/autograd/visit.h"
#include "sherd/runtime/base/pooled_allocator.h"

namespace sherd {

// [Note: the call seam]
// Every module call is Call(module, body, arguments...). The body is stateless and gets the module
// and the arguments by const reference, and the arguments are copied when a wrapper needs them: so
// a wrapper can run the body again when the caller's frame is long gone. Wrappers (interceptors)
// form a list per module, outermost first; the order in which they were put on is the order of
// composition.

// One call whose body can be run again: the arguments, and after Invoke the result.
//
// Ownership: shared by the caller, until it has the result, and by wrappers that run the body
// again.
class CallRecord {
 public:
  virtual ~CallRecord() = default;
  // Runs the body on the kept arguments and keeps its result, in place of an earlier one.
  virtual void Invoke() = 0;
  // Visits the variables of the result, always in the same order. REQUIRES: Invoke ran.
  virtual void VisitResult(const VariableVisitor& visit) = 0;
  // Visits the variables of the arguments. What a wrapper puts in their place, every wrapper sees
  // that shares the record, also in a recompute: change those of CallContext::WithOwnRecord.
  virtual void VisitArguments(const VariableVisitor& visit) = 0;
  // Forgets the result, so that only the tape keeps its variables.
  virtual void DropResult() = 0;
  // Another record of the same body and copies of the arguments, without a result; null for a
  // function that cannot be copied, which no wrapper is around.
  virtual std::shared_ptr<CallRecord> Clone() const = 0;
  // Takes over the result of a clone. REQUIRES: `clone` came from Clone and was invoked.
  virtual void TakeResultOf(CallRecord& clone) = 0;
};

// A call on its way through the wrappers: the record, and how many wrappers are still to come.
// Cheap to copy; a copy can proceed again later, also when the module got more wrappers, which go
// around those it has.
class CallContext {
 public:
  CallContext(const Module* module, std::shared_ptr<CallRecord> record, size_t wrappers)
      : module_(module), record_(std::move(record)), wrappers_(wrappers) {}

  // Whose call it is; null for a checkpointed function.
  const Module* module() const { return module_; }
  CallRecord& record() const { return *record_; }
  // Runs the wrappers further in, then the body; the result is in record().
  void Proceed() const;
  // The same call with a record of its own. Wrappers further in keep that one, so its arguments may
  // be replaced: a wrapper further out that runs the call again finds its own unchanged.
  CallContext WithOwnRecord() const { return CallContext(module_, record_->Clone(), wrappers_); }

 private:
  const Module* module_;
  std::shared_ptr<CallRecord> record_;
  size_t wrappers_;  // the innermost ones of the module
};

// A wrapper around the calls of a module.
class Interceptor {
 public:
  virtual ~Interceptor() = default;
  // Does what it does around call.Proceed(), which it calls exactly once now, and on a copy of
  // `call` any number of times later. Runs for every call, recorded or not.
  virtual void Around(const CallContext& call) = 0;
};

namespace internal {

struct RandomContext;

// Where the thread is in the tree of calls; see DESIGN of random numbers in the layer's README.
struct CallFrame {
  CallFrame* parent = nullptr;
  const Module* module = nullptr;
  uint64_t path = 0;
  uint32_t random_ops = 0;
  std::shared_ptr<const RandomContext> random;
  absl::InlinedVector<std::pair<const Module*, uint32_t>, 4> calls;  // how often each was called
};

// Makes a frame the thread's innermost one while it lives.
//
// Frames form a stack that lives in the guards; nothing is allocated for a call without random ops.
class FrameGuard {
 public:
  explicit FrameGuard(const Module& module);  // a call of `module` from the current frame
  explicit FrameGuard(CallFrame frame);       // takes up a frame again, for a recompute
  ~FrameGuard();
  FrameGuard(const FrameGuard&) = delete;
  FrameGuard& operator=(const FrameGuard&) = delete;

 private:
  CallFrame frame_;
};

// [Note: arguments outlive the call]
// Types whose copies still point into the caller's frame.
template <typename T>
inline constexpr bool kIsSpan = false;
template <typename T, size_t N>
inline constexpr bool kIsSpan<std::span<T, N>> = true;
template <typename T>
inline constexpr bool kIsReferenceWrapper = false;
template <typename T>
inline constexpr bool kIsReferenceWrapper<std::reference_wrapper<T>> = true;

// Whether a copy of a T stays valid after the caller's frame is gone, as far as its type tells.
template <typename T>
inline constexpr bool kMayOutliveCaller =
    !std::is_pointer_v<T> && !kIsSpan<T> && !kIsReferenceWrapper<T> &&
    !std::is_same_v<T, std::string_view>;

// A CallRecord that knows the types. The result is moved out once by the caller.
template <typename Invocable, typename... Args>
class TypedCall final : public CallRecord {
 public:
  using Result = std::invoke_result_t<const Invocable&, const Args&...>;
  static_assert(!std::is_void_v<Result> && !std::is_reference_v<Result>,
                "a module call returns a value: variables, or a struct of them");

  template <typename... Given>
  explicit TypedCall(Invocable invocable, Given&&... args)
      : invocable_(std::move(invocable)), args_(std::forward<Given>(args)...) {}

  void Invoke() override {
    result_.emplace(std::apply([this](const Args&... args) { return invocable_(args...); }, args_));
  }
  void VisitResult(const VariableVisitor& visit) override { VisitAny(*result_, visit); }
  void VisitArguments(const VariableVisitor& visit) override { VisitAny(args_, visit); }
  void DropResult() override { result_.reset(); }
  std::shared_ptr<CallRecord> Clone() const override {
    if constexpr (std::is_copy_constructible_v<Invocable>) {
      return std::apply(
          [this](const Args&... args) {
            return std::allocate_shared<TypedCall>(PooledAllocator<TypedCall>(), invocable_,
                                                   args...);
          },
          args_);
    }
    return nullptr;
  }
  void TakeResultOf(CallRecord& clone) override {
    result_.emplace(static_cast<TypedCall&>(clone).TakeResult());
  }
  // REQUIRES: Invoke ran. Afterwards there is no result.
  Result TakeResult() {
    Result result = std::move(*result_);
    result_.reset();
    return result;
  }

 private:
  const Invocable invocable_;
  std::tuple<Args...> args_;
  std::optional<Result> result_;
};

// A stateless body with the module it is a body of; the module outlives the tape's record.
template <typename M, typename Body>
struct BoundBody {
  M* module;
  template <typename... Args>
  auto operator()(const Args&... args) const {
    return Body{}(*module, args...);
  }
};

}  // namespace internal

// Runs `body(module, arguments...)` as one call of `module`, inside the module's wrappers.
//
// Written in a module's call operator:
//   Variable operator()(const Variable& x) {
//     return Call(*this, [](Mlp& self, const Variable& x) { return self.down(Silu(self.up(x))); },
//     x);
//   }
// Ownership: with wrappers, arguments are decay-copied and live as long as the tape needs them;
// spans, string views, reference wrappers and raw pointers do not compile, since they would dangle.
// Cost: without wrappers, one frame on the stack; with them a record beside it, of memory that the
// thread uses again.
template <typename M, typename Body, typename... Args>
auto Call(M& module, Body body, const Args&... args) {
  static_assert(std::is_empty_v<Body>,
                "the body of a module call captures nothing: pass arguments");
  static_assert((internal::kMayOutliveCaller<std::decay_t<Args>> && ...),
                "an argument of a module call would dangle in a recompute: pass it by value");
  const internal::FrameGuard frame(module);
  if (module.interceptors().empty()) return body(module, args...);
  using Bound = internal::BoundBody<M, Body>;
  using Record = internal::TypedCall<Bound, std::decay_t<Args>...>;
  auto record = std::allocate_shared<Record>(PooledAllocator<Record>(), Bound{&module}, args...);
  CallContext(&module, record, module.interceptors().size()).Proceed();
  return record->TakeResult();
}

}  // namespace sherd
