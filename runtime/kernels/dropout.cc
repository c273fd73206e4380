#include "sherd/runtime/kernels/dropout.h"

#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/dropout_rows.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
void Dropout(const Tensor& x, uint64_t key, std::span<const int64_t> row_samples, double p,
             const Tensor& out, Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Dropout(x, key, row_samples, p, out, write);
  }
  if (!IsInnermostPacked(x)) {
    return Dropout(PackInnermost(x), key, row_samples, p, out, write);
  }
  SHERD_CHECK(x.shape() == out.shape() && x.dtype() == out.dtype(),
              "the output of dropout does not fit its input");
  const internal::DropoutRows from = internal::DropoutRowsOf(x), to = internal::DropoutRowsOf(out);
  internal::CheckDropout(x, from, p, row_samples);
  if (x.numel() == 0) return;
  const double threshold = internal::DropoutThreshold(p);
  if (threshold >= 0x1p32) {
    if (write == Write::kOverwrite) Fill(out, 0.0);
    return;
  }
  const auto loop = internal::LoopsOf(x.device()).update->dropout[internal::FloatIndex(x.dtype())];
  const int64_t elem_bytes = SizeOf(x.dtype()), per_sample = from.positions * from.heads;
  x.device().pool().ParallelFor(
      from.batch * per_sample, internal::GrainOf(from.channels), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t b = i / per_sample, t = i % per_sample / from.heads, h = i % from.heads;
          loop({.x = internal::Address(x) + from.OffsetOf(b, t, h) * elem_bytes,
                .out = internal::Address(out) + to.OffsetOf(b, t, h) * elem_bytes,
                .key = key,
                .sample = static_cast<uint64_t>(row_samples[static_cast<size_t>(b)]),
                .counter_high = internal::DropoutCounter(t, h),
                .threshold = static_cast<uint32_t>(threshold),
                .scale = 1.0 / (1.0 - p),
                .n = from.channels,
                .add = write == Write::kAdd});
        }
      });
}

}  // namespace sherd::kernels
