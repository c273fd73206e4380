#include "sherd/runtime/kernels/optimizer_step.h"

#include "sherd/runtime/cuda/internal/map.h"
#include "sherd/runtime/kernels/internal/optimizer_args.h"
#define SHERD_ISA cuda_math
#include "sherd/runtime/kernels/internal/update.h"
#undef SHERD_ISA

// Bytes moved, for parameters of p, gradients of g and moments of m bytes an element: AdamWStep
// reads p + g + 2m and writes p + 2m; SgdStep reads p + g + m and writes p + m, no m without
// momentum; MomentumStep reads g + m and writes m and the update.
namespace sherd::cuda {
namespace {

using kernels::internal::ArgsOf;

template <typename C>
struct AdamWMap {
  using Computed = C;
  math::AdamWNumbers<C> numbers;
  __device__ void operator()(const C (&in)[4], C (&out)[3]) const {
    const math::AdamWElement<C> next = math::AdamWOf<C>(numbers, in[1], {in[0], in[2], in[3]});
    out[0] = next.param;
    out[1] = next.m;
    out[2] = next.v;
  }
};

template <typename C>
struct SgdMap {
  using Computed = C;
  math::SgdNumbers<C> numbers;
  __device__ void operator()(const C (&in)[2], C (&out)[1]) const {
    out[0] = math::SgdOf(numbers, in[1], in[0]);
  }
};

template <typename C>
struct SgdMomentumMap {
  using Computed = C;
  math::SgdNumbers<C> numbers;
  __device__ void operator()(const C (&in)[3], C (&out)[2]) const {
    const math::SgdElement<C> next = math::SgdMomentumOf<C>(numbers, in[1], {in[0], in[2]});
    out[0] = next.param;
    out[1] = next.m;
  }
};

template <typename C>
struct MomentumMap {
  using Computed = C;
  math::MomentumNumbers<C> numbers;
  __device__ void operator()(const C (&in)[2], C (&out)[2]) const {
    const math::MomentumElement<C> next = math::MomentumOf<C>(numbers, in[0], in[1]);
    out[0] = next.update;
    out[1] = next.m;
  }
};

// A piece as a vector, whatever its shape.
Tensor Flat(const Tensor& x, int64_t elems) {
  kernels::internal::CheckPiece(x, elems);
  return x.Reshape({elems});
}

}  // namespace

void Kernels::AdamWStep(const Tensor& param, const Tensor& grad, const Tensor& m, const Tensor& v,
                        const kernels::AdamWCoefficients& coefficients) const {
  const int64_t n = param.numel();
  const Tensor to = Flat(param, n), from = Flat(grad, n), first = Flat(m, n), second = Flat(v, n);
  WithCompute(param.dtype(), [&]<typename C>(C) {
    RunMap<AdamWMap<C>, 4, 3>({math::NumbersOf<C>(ArgsOf(coefficients))},
                              {&to, &from, &first, &second}, {{{&to}, {&first}, {&second}}});
  });
}

void Kernels::SgdStep(const Tensor& param, const Tensor& grad, const Tensor& m,
                      const kernels::SgdCoefficients& coefficients) const {
  const int64_t n = param.numel();
  const Tensor to = Flat(param, n), from = Flat(grad, n);
  WithCompute(param.dtype(), [&]<typename C>(C) {
    const math::SgdNumbers<C> numbers = math::NumbersOf<C>(ArgsOf(coefficients));
    if (!m.defined()) return RunMap<SgdMap<C>, 2, 1>({numbers}, {&to, &from}, {{{&to}}});
    const Tensor momentum = Flat(m, n);
    RunMap<SgdMomentumMap<C>, 3, 2>({numbers}, {&to, &from, &momentum}, {{{&to}, {&momentum}}});
  });
}

void Kernels::MomentumStep(const Tensor& update, const Tensor& grad, const Tensor& m,
                           const kernels::MomentumCoefficients& coefficients) const {
  const int64_t n = update.numel();
  SHERD_CHECK(ComputeDTypeOf(update.dtype()) == update.dtype(),
              "the update of a momentum is f32 or f64");
  const Tensor to = Flat(update, n), from = Flat(grad, n), momentum = Flat(m, n);
  WithCompute(update.dtype(), [&]<typename C>(C) {
    RunMap<MomentumMap<C>, 2, 2>({math::NumbersOf<C>(ArgsOf(coefficients))}, {&from, &momentum},
                                 {{{&to}, {&momentum}}});
  });
}

}  // namespace sherd::cuda
