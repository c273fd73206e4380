#include "sherd/runtime/kernels/unary.h"

#include "sherd/runtime/cuda/internal/map.h"
#include "sherd/runtime/kernels/internal/floats.h"

// Bytes moved, for elements of e bytes: Unary and Clamp read e and write e; UnaryBackward and
// ClampBackward read 2e and write e, and read e more where they add.
namespace sherd::cuda {
namespace {

using kernels::UnaryFunction;
using kernels::Write;

void CheckSameDType(const Tensor& a, const Tensor& b) {
  SHERD_CHECK(a.dtype() == b.dtype(), "operands of a function differ in dtype");
}

template <typename Fn, typename FnBackward>
struct Pair {
  using Forward = Fn;
  using Backward = FnBackward;
};

// Calls f with the Pair of a function.
template <typename F>
void WithFunction(UnaryFunction function, const F& f) {
  switch (function) {
    case UnaryFunction::kExp:
      return f(Pair<math::ExpFn, math::ExpFnBackward>{});
    case UnaryFunction::kLog:
      return f(Pair<math::LogFn, math::LogFnBackward>{});
    case UnaryFunction::kTanh:
      return f(Pair<math::TanhFn, math::TanhFnBackward>{});
    case UnaryFunction::kSigmoid:
      return f(Pair<math::SigmoidFn, math::SigmoidFnBackward>{});
    case UnaryFunction::kRelu:
      return f(Pair<math::ReluFn, math::ReluFnBackward>{});
    case UnaryFunction::kSqrt:
      return f(Pair<math::SqrtFn, math::SqrtFnBackward>{});
    case UnaryFunction::kRsqrt:
      return f(Pair<math::RsqrtFn, math::RsqrtFnBackward>{});
    case UnaryFunction::kErf:
      return f(Pair<math::ErfFn, math::ErfFnBackward>{});
    case UnaryFunction::kGelu:
      return f(Pair<math::GeluFn, math::GeluFnBackward>{});
    case UnaryFunction::kGeluTanh:
      return f(Pair<math::GeluTanhFn, math::GeluTanhFnBackward>{});
  }
  SHERD_CHECK(false, "there is no such function");
}

template <typename C>
struct ClampMap {
  using Computed = C;
  C low, high;
  __device__ void operator()(const C (&in)[1], C (&out)[1]) const {
    out[0] = math::Clamp(in[0], low, high);
  }
};

template <typename C>
struct ClampBackwardMap {
  using Computed = C;
  C low, high;
  __device__ void operator()(const C (&in)[2], C (&out)[1]) const {
    out[0] = math::ClampGradientOf(in[0], in[1], low, high);
  }
};

}  // namespace

void Kernels::Unary(UnaryFunction function, const Tensor& x, const Tensor& out) const {
  CheckSameDType(x, out);
  WithFunction(function, [&]<typename P>(P) {
    WithCompute(out.dtype(), [&]<typename C>(C) {
      RunMap<UnaryMap<typename P::Forward, C>, 1, 1>({}, {&x}, {{{&out}}});
    });
  });
}

void Kernels::UnaryBackward(UnaryFunction function, const Tensor& grad, const Tensor& saved,
                            const Tensor& grad_x, Write write) const {
  CheckSameDType(grad, grad_x);
  CheckSameDType(saved, grad_x);
  WithFunction(function, [&]<typename P>(P) {
    WithCompute(grad_x.dtype(), [&]<typename C>(C) {
      RunMap<BinaryMap<typename P::Backward, C>, 2, 1>({}, {&grad, &saved}, {{{&grad_x, write}}});
    });
  });
}

void Kernels::Clamp(const Tensor& x, double low, double high, const Tensor& out) const {
  CheckSameDType(x, out);
  const double least = kernels::internal::RoundedTo(x.dtype(), low);
  const double most = kernels::internal::RoundedTo(x.dtype(), high);
  WithCompute(out.dtype(), [&]<typename C>(C) {
    RunMap<ClampMap<C>, 1, 1>({static_cast<C>(least), static_cast<C>(most)}, {&x}, {{{&out}}});
  });
}

void Kernels::ClampBackward(const Tensor& grad, const Tensor& x, double low, double high,
                            const Tensor& grad_x, Write write) const {
  CheckSameDType(grad, grad_x);
  CheckSameDType(x, grad_x);
  const double least = kernels::internal::RoundedTo(x.dtype(), low);
  const double most = kernels::internal::RoundedTo(x.dtype(), high);
  WithCompute(grad_x.dtype(), [&]<typename C>(C) {
    RunMap<ClampBackwardMap<C>, 2, 1>({static_cast<C>(least), static_cast<C>(most)}, {&grad, &x},
                                      {{{&grad_x, write}}});
  });
}

}  // namespace sherd::cuda
