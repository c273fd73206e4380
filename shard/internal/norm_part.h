#pragma once

#include <array>
#include <cstddef>

#include "sherd/runtime/core/tensor.h"
#include "sherd/shard/clip_grad.h"

namespace sherd::internal {

// One rank's part of a gradient norm, taken gradient by gradient in order: the sum of magnitudes or
// of squares, or the largest magnitude.
//
// Gradients are reduced some at a time, so that a device with queues is waited for once for many,
// and nothing is allocated.
class NormPart {
 public:
  explicit NormPart(NormType type) : type_(type) {}
  NormPart(const NormPart&) = delete;
  NormPart& operator=(const NormPart&) = delete;

  // An undefined gradient counts nothing. Others are held until the value is asked for.
  void Add(const Tensor& gradient);
  // Of all that were added.
  double Value();

 private:
  static constexpr size_t kAtOnce = 128;

  void Flush();

  const NormType type_;
  std::array<Tensor, kAtOnce> held_;
  size_t holds_ = 0;
  double value_ = 0.0;
};

}  // namespace sherd::internal
