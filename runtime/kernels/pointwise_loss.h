#pragma once

#include <cstdint>
#include <optional>

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// Losses that compare each element with a target of its own.
namespace sherd::kernels {

enum class PointwiseLoss : uint8_t {
  // max(x, 0) - x y + log(1 + e^-|x|): the cross-entropy of sigmoid(x) with a probability y, finite
  // for every finite x. Targets lie in [0, 1].
  kBceWithLogits,
  // (x - y)^2
  kSquaredError,
};

struct PointwiseLossResult {
  double loss_sum = 0.0;  // over the elements that count
  int64_t count = 0;      // elements whose target is not the ignored one
};

// Sums the loss over all elements whose target is not `ignored`, in f64 in an order fixed by the
// shape.
//
// Shapes: x and targets of one shape, any strides; any two float dtypes.
// Cost: two f64 copies as workspace; meant for heads and scores, not for logits over a vocabulary.
// Errors: kInvalidArgument for a target of kBceWithLogits outside [0, 1], naming its index.
PointwiseLossResult PointwiseLossSum(PointwiseLoss loss, const Tensor& x, const Tensor& targets,
                                     std::optional<double> ignored);

// grad_x (+)= scale * d loss / d x: sigmoid(x) - y, or 2 (x - y); zero for ignored elements.
//
// Shapes, dtypes, cost: as PointwiseLossSum; grad_x as x.
void PointwiseLossBackward(PointwiseLoss loss, const Tensor& x, const Tensor& targets,
                           std::optional<double> ignored, double scale, const Tensor& grad_x,
                           Write write = Write::kOverwrite);

}  // namespace sherd::kernels
