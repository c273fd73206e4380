#include "sherd/runtime/kernels/dropout.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/kernels/backend.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

// The coordinates of a tensor of rank 2 to 4, absent ones of extent 1 and stride 0.
struct Coordinates {
  int64_t batch, positions, heads, channels;
  int64_t batch_stride = 0, position_stride = 0, head_stride = 0;
};

Coordinates CoordinatesOf(const Tensor& x) {
  const int rank = x.rank();
  SHERD_CHECK(rank >= 2 && rank <= 4, "dropout takes rank 2 to 4");
  Coordinates c = {.batch = x.dim(0),
                   .positions = rank >= 3 ? x.dim(1) : 1,
                   .heads = rank == 4 ? x.dim(2) : 1,
                   .channels = x.shape().back()};
  SHERD_CHECK(c.channels <= 1 || x.strides().back() == 1, "channels of dropout are not adjacent");
  c.batch_stride = x.strides()[0];
  if (rank >= 3) c.position_stride = x.strides()[1];
  if (rank == 4) c.head_stride = x.strides()[2];
  return c;
}

void CheckOptions(const Tensor& x, const Coordinates& c, double p) {
  if (!(p >= 0.0 && p <= 1.0)) {
    ThrowInvalidArgument(absl::StrCat("the probability ", p, " is outside [0, 1]"),
                         {.op = "dropout"});
  }
  if (c.heads > int64_t{1} << kDropoutHeadBits ||
      c.positions > int64_t{1} << kDropoutPositionBits ||
      c.channels > int64_t{1} << kDropoutChannelBits) {
    ThrowInvalidArgument(absl::StrCat("an extent of ", x.ToString(), " exceeds its ",
                                      kDropoutPositionBits, " (head: ", kDropoutHeadBits, ") bits"),
                         {.op = "dropout"});
  }
}

}  // namespace

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
  const Coordinates from = CoordinatesOf(x), to = CoordinatesOf(out);
  CheckOptions(x, from, p);
  SHERD_CHECK(static_cast<int64_t>(row_samples.size()) == from.batch,
              "dropout needs one sample index for each row");
  if (x.numel() == 0) return;
  // word * 2^-32 >= p, in integers.
  const double threshold = std::ceil(p * 0x1p32);
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
          const auto offset = [&](const Coordinates& c) {
            return (b * c.batch_stride + t * c.position_stride + h * c.head_stride) * elem_bytes;
          };
          loop({.x = internal::Address(x) + offset(from),
                .out = internal::Address(out) + offset(to),
                .key = key,
                .sample = static_cast<uint64_t>(row_samples[static_cast<size_t>(b)]),
                .counter_high = static_cast<uint64_t>(h) << 52 | static_cast<uint64_t>(t) << 26,
                .threshold = static_cast<uint32_t>(threshold),
                .scale = 1.0 / (1.0 - p),
                .n = from.channels,
                .add = write == Write::kAdd});
        }
      });
}

}  // namespace sherd::kernels
