#include "sherd/runtime/kernels/optimizer_step.h"

#include "tests/runtime/cuda_support.h"

namespace sherd::kernels::test {
namespace {

struct DTypes {
  DType param, grad, moment;
};
constexpr DTypes kDTypes[] = {
    {DType::kF32, DType::kF32, DType::kF32},    {DType::kF64, DType::kF64, DType::kF64},
    {DType::kBF16, DType::kBF16, DType::kBF16}, {DType::kF16, DType::kF16, DType::kF16},
    {DType::kBF16, DType::kF32, DType::kF32},   {DType::kF32, DType::kBF16, DType::kF32},
    {DType::kF32, DType::kF64, DType::kBF16},   {DType::kF64, DType::kF16, DType::kF32},
    {DType::kF16, DType::kBF16, DType::kF32}};
constexpr int64_t kSizes[] = {0, 1, 7, 64, 2051, 4096};

std::string Name(const char* step, const DTypes& d, int64_t n) {
  return std::string(step) + " " + std::string(sherd::NameOf(d.param)) + " " +
         std::string(sherd::NameOf(d.grad)) + " " + std::string(sherd::NameOf(d.moment)) + " " +
         std::to_string(n);
}

// Squares: a second moment is not negative.
Pair SquaresOf(View view, DType dtype, int64_t n) {
  const Tensor x = Laid(view, dtype, {n}, 4);
  Mul(x, x, x);
  return PairOf(x);
}

TEST(CudaOptimizerStepTest, AdamWOfMixedDtypes) {
  const AdamWCoefficients c = {.lr = 0.01,
                               .eps = 1e-6,
                               .weight_decay = 0.1,
                               .bias_correction1 = 0.3,
                               .bias_correction2 = 0.02,
                               .grad_scale = 0.7};
  for (const DTypes& d : kDTypes) {
    for (int64_t n : kSizes) {
      for (View view : {View::kContiguous, View::kOffset}) {
        const Pair param = LaidPair(view, d.param, {n}, 1);
        const Pair grad = LaidPair(View::kContiguous, d.grad, {n}, 2);
        const Pair m = LaidPair(view, d.moment, {n}, 3), v = SquaresOf(view, d.moment, n);
        AdamWStep(param.cpu, grad.cpu, m.cpu, v.cpu, c);
        AdamWStep(param.gpu, grad.gpu, m.gpu, v.gpu, c);
        ExpectSame(param, Name("adamw param", d, n));
        ExpectSame(m, Name("adamw m", d, n));
        ExpectSame(v, Name("adamw v", d, n));
        ExpectSame(grad, Name("adamw grad", d, n));
      }
    }
  }
}

TEST(CudaOptimizerStepTest, SgdWithAndWithoutMomentum) {
  for (const DTypes& d : kDTypes) {
    for (int64_t n : kSizes) {
      for (int kind = 0; kind < 4; ++kind) {
        const SgdCoefficients c = {.lr = 0.05,
                                   .momentum = kind == 0 ? 0.0 : 0.9,
                                   .dampening = kind == 1 ? 0.2 : 0.0,
                                   .weight_decay = 0.01,
                                   .grad_scale = 0.5,
                                   .nesterov = kind == 2,
                                   .first = kind == 3};
        const View view = n % 2 == 0 ? View::kContiguous : View::kOffset;
        const Pair param = LaidPair(view, d.param, {n}, 1);
        const Pair grad = LaidPair(View::kContiguous, d.grad, {n}, 2);
        const Pair m = kind == 0 ? Pair() : LaidPair(View::kContiguous, d.moment, {n}, 3);
        SgdStep(param.cpu, grad.cpu, m.cpu, c);
        SgdStep(param.gpu, grad.gpu, m.gpu, c);
        ExpectSame(param, Name("sgd param", d, n));
        if (kind != 0) ExpectSame(m, Name("sgd m", d, n));
      }
    }
  }
}

TEST(CudaOptimizerStepTest, MomentumThatIsNotAppliedYet) {
  for (const DTypes& d : kDTypes) {
    for (int64_t n : kSizes) {
      for (bool nesterov : {false, true}) {
        const Pair update = LaidPair(View::kContiguous, ComputeDTypeOf(d.param), {n}, 1);
        const Pair grad = LaidPair(View::kContiguous, d.grad, {n}, 2);
        const Pair m = LaidPair(View::kContiguous, d.moment, {n}, 3);
        const MomentumCoefficients c = {.grad_scale = 0.5, .nesterov = nesterov};
        MomentumStep(update.cpu, grad.cpu, m.cpu, c);
        MomentumStep(update.gpu, grad.gpu, m.gpu, c);
        ExpectSame(update, Name("momentum update", d, n));
        ExpectSame(m, Name("momentum m", d, n));
      }
    }
  }
}

}  // namespace
}  // namespace sherd::kernels::test
