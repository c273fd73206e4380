#include "sherd/runtime/kernels/reduce.h"

#include <cmath>
#include <vector>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"

namespace sherd::kernels {
namespace {

// Elements that make one partial result; part of what fixes the bits of a sum.
constexpr int64_t kPartialElems = 16384;

// Reduces pieces fixed by the shape, in parallel, then combines them in order.
template <typename Combine>
double Reduce(const internal::ReduceLoops::Loop (&loops)[internal::kFloatTypes], const Tensor& x,
              Combine combine) {
  const internal::ReduceLoops::Loop loop = loops[internal::FloatIndex(x.dtype())];
  const internal::RunLoop<1> run({&x});
  if (run.numel() == 0) return 0.0;
  ThreadPool& pool = x.device().pool();
  const bool one_run = run.runs() == 1;
  const int64_t items = one_run ? run.run_elems() : run.runs();
  const int64_t grain = one_run ? kPartialElems : internal::GrainOf(run.run_elems(), kPartialElems);
  std::vector<double> partials(static_cast<size_t>((items + grain - 1) / grain), 0.0);
  const int64_t elem_bytes = SizeOf(x.dtype());
  pool.ParallelFor(items, 4 * grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += grain) {
      const int64_t last = std::min(end, i + grain);
      double& partial = partials[static_cast<size_t>(i / grain)];
      if (one_run) {
        partial = loop(run.At(0)[0] + i * elem_bytes, last - i);
        continue;
      }
      for (int64_t r = i; r < last; ++r)
        partial = combine(partial, loop(run.At(r)[0], run.run_elems()));
    }
  });
  double result = 0.0;
  for (double partial : partials) result = combine(result, partial);
  return result;
}

double Plus(double a, double b) { return a + b; }

double Most(double a, double b) { return std::isnan(a) || a > b ? a : b; }

double ReduceOnCpu(Reduction what, const Tensor& x) {
  const internal::ReduceLoops& loops = *internal::LoopsOf(x.device()).reduce;
  switch (what) {
    case Reduction::kSum:
      return Reduce(loops.sum, x, Plus);
    case Reduction::kSumAbs:
      return Reduce(loops.sum_abs, x, Plus);
    case Reduction::kSumSquares:
      return Reduce(loops.sum_squares, x, Plus);
    case Reduction::kMaxAbs:
      break;
  }
  return Reduce(loops.max_abs, x, Most);
}

double ReduceOne(Reduction what, const Tensor& x) {
  double result = 0.0;
  ReduceEach(what, std::span(&x, 1), std::span(&result, 1));
  return result;
}

}  // namespace

void ReduceEach(Reduction what, std::span<const Tensor> xs, std::span<double> out) {
  SHERD_CHECK(xs.size() == out.size(), "other numbers of tensors and results");
  for (size_t begin = 0, end = 0; begin < xs.size(); begin = end) {
    const KernelBackend* const other = BackendOf(xs[begin]);
    for (end = begin + 1; end < xs.size() && xs[end].device() == xs[begin].device(); ++end) {
    }
    if (other != nullptr) {
      other->ReduceEach(what, xs.subspan(begin, end - begin), out.subspan(begin, end - begin));
      continue;
    }
    for (size_t i = begin; i < end; ++i) out[i] = ReduceOnCpu(what, xs[i]);
  }
}

double Sum(const Tensor& x) { return ReduceOne(Reduction::kSum, x); }

double SumAbs(const Tensor& x) { return ReduceOne(Reduction::kSumAbs, x); }

double SumSquares(const Tensor& x) { return ReduceOne(Reduction::kSumSquares, x); }

double MaxAbs(const Tensor& x) { return ReduceOne(Reduction::kMaxAbs, x); }

}  // namespace sherd::kernels
