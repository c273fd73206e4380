#include "sherd/shard/internal/norm_part.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "sherd/runtime/kernels/reduce.h"

namespace sherd::internal {
namespace {

kernels::Reduction ReductionOf(NormType type) {
  switch (type) {
    case NormType::kOne:
      return kernels::Reduction::kSumAbs;
    case NormType::kTwo:
      return kernels::Reduction::kSumSquares;
    case NormType::kInf:
      break;
  }
  return kernels::Reduction::kMaxAbs;
}

}  // namespace

void NormPart::Add(const Tensor& gradient) {
  if (!gradient.defined()) return;
  held_[holds_++] = gradient;
  if (holds_ == kAtOnce) Flush();
}

double NormPart::Value() {
  Flush();
  return value_;
}

void NormPart::Flush() {
  std::array<double, kAtOnce> values;
  kernels::ReduceEach(ReductionOf(type_), std::span(held_).first(holds_),
                      std::span(values).first(holds_));
  for (size_t i = 0; i < holds_; ++i) {
    if (type_ != NormType::kInf) {
      value_ += values[i];
    } else if (!std::isnan(value_) && !(value_ > values[i])) {
      value_ = values[i];
    }
    held_[i] = Tensor();
  }
  holds_ = 0;
}

}  // namespace sherd::internal
