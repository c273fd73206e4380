#include "sherd/runtime/kernels/sum_over.h"

#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/sum_dims.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

using internal::Address;

using internal::SumSplit;

// Rows that make one partial sum; part of what fixes the bits.
int64_t PartialRows(int64_t rows) { return std::max<int64_t>(64, (rows + 31) / 32); }

// Adds rows of adjacent elements to rows of sums [kept, columns].
Tensor SumRows(const Tensor& x, SumSplit split) {
  const int64_t columns = split.kept.Pop();
  const int64_t kept = split.kept.count(), rows = split.summed.count();
  const int64_t block = PartialRows(rows), blocks = (rows + block - 1) / block;
  const DType compute = internal::ComputeDType(x.dtype());
  const Tensor partials =
      Tensor::Zeros(x.device(), compute, {kept, blocks, columns}, MemoryCategory::kWorkspace);
  const auto& cast = internal::LoopsOf(x.device()).elementwise->cast;
  const auto widen = cast[internal::FloatIndex(x.dtype())][internal::FloatIndex(compute)];
  const int64_t x_bytes = SizeOf(x.dtype()), row_bytes = columns * SizeOf(compute);
  x.device().pool().ParallelFor(
      kept * blocks, internal::GrainOf(std::min(block, rows) * columns),
      [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
          const int64_t first = item % blocks * block;
          const char* const from = Address(x) + split.kept.OffsetOf(item / blocks) * x_bytes;
          char* const sum = Address(partials) + item * row_bytes;
          for (int64_t r = first; r < std::min(rows, first + block); ++r) {
            widen(from + split.summed.OffsetOf(r) * x_bytes, sum, columns, true);
          }
        }
      });
  const Tensor sums = partials.Slice(1, 0, 1);
  for (int64_t b = 1; b < blocks; ++b) Copy(partials.Slice(1, b, b + 1), sums, Write::kAdd);
  return sums;
}

// Sums runs of adjacent elements to one number for each kept index.
Tensor SumRuns(const Tensor& x, SumSplit split) {
  const int64_t run = split.summed.Pop();
  const int64_t kept = split.kept.count(), runs = split.summed.count();
  const auto loop = internal::LoopsOf(x.device()).reduce->sum[internal::FloatIndex(x.dtype())];
  const Tensor sums = Tensor::Empty(x.device(), DType::kF64, {kept}, MemoryCategory::kWorkspace);
  double* const to = sums.data<double>();
  const int64_t x_bytes = SizeOf(x.dtype());
  x.device().pool().ParallelFor(
      kept, internal::GrainOf(runs * run), [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) {
          const char* const from = Address(x) + split.kept.OffsetOf(k) * x_bytes;
          double sum = 0.0;
          for (int64_t r = 0; r < runs; ++r) {
            sum += loop(from + split.summed.OffsetOf(r) * x_bytes, run);
          }
          to[k] = sum;
        }
      });
  return sums;
}

}  // namespace

void SumOver(const Tensor& x, const Tensor& out, double scale, Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->SumOver(x, out, scale, write);
  }
  SHERD_CHECK(x.rank() == out.rank(), "a sum over dimensions keeps the rank");
  if (out.numel() == 0) return;
  if (x.numel() == 0) {
    if (write == Write::kOverwrite) Fill(out, 0.0);
    return;
  }
  if (x.shape() == out.shape()) {
    if (scale == 1.0) return Cast(x, out, write);
    if (x.dtype() == out.dtype()) return Scale(x, scale, out, write);
  }
  const Tensor packed = internal::HasAdjacentElements(x) ? x : Pack(x);
  const SumSplit split = internal::SplitDims(packed, out.shape());
  const Tensor sums = (split.innermost_kept ? SumRows(packed, split) : SumRuns(packed, split));
  if (scale != 1.0) Scale(sums, scale, sums);
  const Tensor packed_sums = Pack(sums);
  Cast(packed_sums.Reshape(out.shape()), out, write);
}

}  // namespace sherd::kernels
