#include "sherd/runtime/core/shape.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "sherd/runtime/base/error.h"

namespace sherd {

Shape::Shape(std::initializer_list<int64_t> extents)
    : Shape(std::span<const int64_t>(extents.begin(), extents.size())) {}

Shape::Shape(std::span<const int64_t> extents) {
  if (extents.size() > kMaxRank) {
    ThrowInvalidArgument(absl::StrCat("a shape has at most ", kMaxRank, " extents, got [",
                                      absl::StrJoin(extents, ", "), "]"));
  }
  for (int64_t extent : extents) {
    if (extent < 0) {
      ThrowInvalidArgument(absl::StrCat("a shape has no negative extents, got [",
                                        absl::StrJoin(extents, ", "), "]"));
    }
    extents_[static_cast<size_t>(rank_++)] = extent;
  }
}

int64_t Shape::numel() const {
  int64_t n = 1;
  for (int i = 0; i < rank_; ++i) n *= (*this)[i];
  return n;
}

Shape Shape::ContiguousStrides() const {
  Shape strides;
  strides.rank_ = rank_;
  int64_t stride = 1;
  for (int i = rank_ - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= (*this)[i];
  }
  return strides;
}

Shape Shape::Append(int64_t extent) const {
  if (rank_ == kMaxRank) ThrowInvalidArgument("Append exceeds the largest rank of a shape");
  Shape longer = *this;
  longer.extents_[static_cast<size_t>(longer.rank_++)] = extent;
  return longer;
}

std::string Shape::ToString() const {
  return absl::StrCat("[", absl::StrJoin(extents(), ", "), "]");
}

}  // namespace sherd
