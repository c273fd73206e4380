#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

namespace sherd {

// The extents of a tensor, outermost first; at most kMaxRank of them, stored inline.
//
// Also used for strides. Cheap to copy.
class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;
  // Errors: kInvalidArgument for more than kMaxRank extents or a negative one.
  Shape(std::initializer_list<int64_t> extents);
  explicit Shape(std::span<const int64_t> extents);

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return extents_[static_cast<size_t>(i)]; }
  // For building one extent by extent; the rank stays as it is.
  int64_t& operator[](int i) { return extents_[static_cast<size_t>(i)]; }
  // Extent counted from the back: back(0) is the innermost one.
  int64_t back(int i = 0) const { return (*this)[rank_ - 1 - i]; }
  std::span<const int64_t> extents() const { return {extents_.data(), static_cast<size_t>(rank_)}; }

  // The number of elements; 1 for rank 0.
  int64_t numel() const;
  // The product of all extents but the innermost: how many rows a row-wise op sees.
  int64_t rows() const { return rank_ == 0 ? 1 : (back() == 0 ? 0 : numel() / back()); }
  // Element strides of a contiguous tensor of this shape.
  Shape ContiguousStrides() const;
  // This shape with one more extent at the end. REQUIRES: rank() < kMaxRank.
  Shape Append(int64_t extent) const;
  // The first `rank` extents.
  Shape Prefix(int rank) const { return Shape(extents().first(static_cast<size_t>(rank))); }
  // "[2, 3, 4]"
  std::string ToString() const;

  // Equal rank and extents: [2] and [2, 1] differ.
  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }

 private:
  std::array<int64_t, kMaxRank> extents_{};
  int rank_ = 0;
};

}  // namespace sherd
