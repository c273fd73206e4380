#pragma once

#include "sherd/autograd/op.h"
#include "sherd/runtime/kernels/elementwise.h"
#include "sherd/runtime/kernels/sum_over.h"

// What backwards of several ops share.
namespace sherd::internal {

// Calls write(tensor, mode) for the gradient of input i, in the input's own dtype: a target of
// another dtype (a bf16 parameter whose gradient is kept in f32) gets the result cast.
template <typename F>
void Contribute(OpBackward& b, int i, const F& write) {
  const GradTarget target = b.target(i);
  const DType dtype = b.input_spec(i).dtype;
  if (target.tensor.dtype() == dtype) {
    write(target.tensor, target.write);
    return;
  }
  const Tensor own = Tensor::Empty(target.tensor.device(), dtype, target.tensor.shape());
  write(own, kernels::Write::kOverwrite);
  kernels::Cast(own, target.tensor, target.write);
}

// The same for a finished value of any float dtype and strides.
inline void ContributeCopy(OpBackward& b, int i, const Tensor& value) {
  const GradTarget target = b.target(i);
  if (target.tensor.dtype() == value.dtype()) {
    kernels::Copy(value, target.tensor, target.write);
  } else {
    kernels::Cast(value, target.tensor, target.write);
  }
}

// Scales `value`, which has the shape of the result, and sums it over what input i was repeated in.
inline void ContributeSum(OpBackward& b, int i, const Tensor& value, double scale = 1.0) {
  const GradTarget target = b.target(i);
  const Shape& shape = target.tensor.shape();
  Shape aligned = value.shape();
  for (int k = 0; k < aligned.rank(); ++k) {
    const int own = k - (aligned.rank() - shape.rank());
    aligned[k] = own < 0 ? 1 : shape[own];
  }
  kernels::SumOver(value, target.tensor.Reshape(aligned), scale, target.write);
}

}  // namespace sherd::internal
