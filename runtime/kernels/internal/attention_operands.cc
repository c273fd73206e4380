#include "sherd/runtime/kernels/internal/attention_operands.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"
#include "sherd/runtime/kernels/dropout.h"

namespace sherd::kernels::internal {
namespace {

constexpr int64_t kMaxHeadSize = 256;

}  // namespace

void CheckLike(const Tensor& x, const Tensor& like) {
  SHERD_CHECK(!x.defined() || (x.dtype() == like.dtype() && x.shape() == like.shape() &&
                               (x.numel() == 0 || x.dim(3) == 1 || x.strides()[3] == 1)),
              "an operand of attention does not fit");
}

void CheckAttention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out,
                    const Tensor& lse) {
  SHERD_CHECK(q.rank() == 4 && k.rank() == 4 && q.dim(0) == k.dim(0) && q.dim(3) == k.dim(3) &&
                  q.dtype() == k.dtype() && k.dim(2) > 0 && q.dim(2) % k.dim(2) == 0,
              "queries and keys of attention do not fit each other");
  SHERD_CHECK(q.dim(3) <= kMaxHeadSize, "the head size of attention is above 256");
  SHERD_CHECK(v.defined() && out.defined(), "an operand of attention is missing");
  CheckLike(q, q);
  CheckLike(k, k);
  CheckLike(v, k);
  CheckLike(out, q);
  SHERD_CHECK(lse.dtype() == ComputeDTypeOf(q.dtype()) && lse.is_contiguous() &&
                  lse.numel() == q.dim(0) * q.dim(1) * q.dim(2),
              "lse does not fit the queries of attention");
}

AttentionDropout DropoutOf(const Tensor& q, const Tensor& k, const AttentionOptions& options) {
  if (!(options.dropout >= 0.0 && options.dropout < 1.0)) {
    ThrowInvalidArgument(absl::StrCat("dropout lies in [0, 1), got ", options.dropout),
                         {.op = "attention"});
  }
  if (options.dropout == 0.0) return {};
  SHERD_CHECK(static_cast<int64_t>(options.row_samples.size()) == q.dim(0),
              "dropout of attention needs one sample index for each row");
  if (q.dim(2) > int64_t{1} << kDropoutHeadBits ||
      std::max(q.dim(1), k.dim(1)) > int64_t{1} << kDropoutPositionBits) {
    ThrowInvalidArgument(absl::StrCat("an extent of ", q.ToString(), " or ", k.ToString(),
                                      " exceeds the coordinates of dropout"),
                         {.op = "attention"});
  }
  // word * 2^-32 >= p, in integers.
  return {.on = true,
          .threshold =
              static_cast<uint32_t>(std::min(std::ceil(options.dropout * 0x1p32), 0x1p32 - 1.0)),
          .keep_scale = 1.0 / (1.0 - options.dropout)};
}

}  // namespace sherd::kernels::internal
