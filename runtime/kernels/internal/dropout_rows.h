#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/dropout.h"

// What dropout makes of its operands on every device.
namespace sherd::kernels::internal {

// The coordinates of a tensor of rank 2 to 4, absent ones of extent 1 and stride 0.
struct DropoutRows {
  int64_t batch, positions, heads, channels;
  int64_t batch_stride = 0, position_stride = 0, head_stride = 0;

  // Where channel 0 lies, in elements.
  constexpr int64_t OffsetOf(int64_t b, int64_t t, int64_t h) const {
    return b * batch_stride + t * position_stride + h * head_stride;
  }
};

inline DropoutRows DropoutRowsOf(const Tensor& x) {
  const int rank = x.rank();
  SHERD_CHECK(rank >= 2 && rank <= 4, "dropout takes rank 2 to 4");
  DropoutRows rows = {.batch = x.dim(0),
                      .positions = rank >= 3 ? x.dim(1) : 1,
                      .heads = rank == 4 ? x.dim(2) : 1,
                      .channels = x.shape().back()};
  SHERD_CHECK(rows.channels <= 1 || x.strides().back() == 1,
              "channels of dropout are not adjacent");
  rows.batch_stride = x.strides()[0];
  if (rank >= 3) rows.position_stride = x.strides()[1];
  if (rank == 4) rows.head_stride = x.strides()[2];
  return rows;
}

// The upper half of the counter of channel 0.
constexpr uint64_t DropoutCounter(int64_t position, int64_t head) {
  return static_cast<uint64_t>(head) << (kDropoutPositionBits + kDropoutChannelBits) |
         static_cast<uint64_t>(position) << kDropoutChannelBits;
}

// word * 2^-32 >= p in integers: an element is kept when its word is at least this.
inline double DropoutThreshold(double p) { return std::ceil(p * 0x1p32); }

// Errors: those of Dropout.
inline void CheckDropout(const Tensor& x, const DropoutRows& rows, double p,
                         std::span<const int64_t> row_samples) {
  if (!(p >= 0.0 && p <= 1.0)) {
    ThrowInvalidArgument(absl::StrCat("the probability ", p, " is outside [0, 1]"),
                         {.op = "dropout"});
  }
  if (rows.heads > int64_t{1} << kDropoutHeadBits ||
      rows.positions > int64_t{1} << kDropoutPositionBits ||
      rows.channels > int64_t{1} << kDropoutChannelBits) {
    ThrowInvalidArgument(absl::StrCat("an extent of ", x.ToString(), " exceeds its ",
                                      kDropoutPositionBits, " (head: ", kDropoutHeadBits, ") bits"),
                         {.op = "dropout"});
  }
  SHERD_CHECK(static_cast<int64_t>(row_samples.size()) == rows.batch,
              "dropout needs one sample index for each row");
}

}  // namespace sherd::kernels::internal
