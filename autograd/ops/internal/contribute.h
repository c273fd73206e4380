#pragma once

#include "sherd/autograd/op.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/sum_over.h"

// What backwards of several ops share.
namespace sherd::internal {

// Adds a finished value of any float dtype and strides.
inline void ContributeCopy(OpBackward& b, int i, const Tensor& value) {
  const GradTarget target = b.target(i, GradDType::kAnyFloat);
  kernels::Cast(value, target.tensor, target.write);
}

// Scales `value`, which has the shape of the result, and sums it over what input i was repeated in.
inline void ContributeSum(OpBackward& b, int i, const Tensor& value, double scale = 1.0) {
  const GradTarget target = b.target(i, GradDType::kAnyFloat);
  const Shape& shape = target.tensor.shape();
  Shape aligned = value.shape();
  for (int k = 0; k < aligned.rank(); ++k) {
    const int own = k - (aligned.rank() - shape.rank());
    aligned[k] = own < 0 ? 1 : shape[own];
  }
  kernels::SumOver(value, target.tensor.Reshape(aligned), scale, target.write);
}

}  // namespace sherd::internal
