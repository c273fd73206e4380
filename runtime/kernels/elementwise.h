#pragma once

#include "sherd/runtime/core/tensor.h"
#include "sherd/runtime/kernels/write.h"

// Kernels that compute each output element from the input elements at the same place.
//
// Shapes: all operands of a call have one shape; there is no broadcasting. Any strides; adjacent
//   innermost elements are the fast case, so the halves of a fused [N, 2F] need no copy.
// Dtypes: bf16 and f16 are computed in f32 and rounded once, at the end.
// REQUIRES: operands of one float dtype unless said otherwise. An output is either exactly one of
//   the inputs (same elements, same strides) or overlaps none.
namespace sherd::kernels {

// out (+)= a + b
void Add(const Tensor& a, const Tensor& b, const Tensor& out, Write write = Write::kOverwrite);

// out (+)= a * b
void Mul(const Tensor& a, const Tensor& b, const Tensor& out, Write write = Write::kOverwrite);

// out (+)= alpha * x
void Scale(const Tensor& x, double alpha, const Tensor& out, Write write = Write::kOverwrite);

// out (+)= x. Slices, concatenation and the accumulation of gradients are this kernel on views.
// Dtypes: any for kOverwrite, floats for kAdd; the same on both sides.
void Copy(const Tensor& x, const Tensor& out, Write write = Write::kOverwrite);

// out (+)= x, rounded to the dtype of `out`; any two float dtypes. Of equal ones it is Copy.
void Cast(const Tensor& x, const Tensor& out, Write write = Write::kOverwrite);

// out = value; any dtype (integers take the value truncated).
void Fill(const Tensor& out, double value);

// out = x * sigmoid(x).
// Source: Elfwing et al. 2018, "Sigmoid-Weighted Linear Units".
void Silu(const Tensor& x, const Tensor& out);

// grad_x (+)= grad * d silu(x) / dx
void SiluBackward(const Tensor& grad, const Tensor& x, const Tensor& grad_x,
                  Write write = Write::kOverwrite);

// out = silu(gate) * up, the gated unit of Shazeer 2020, "GLU Variants Improve Transformer".
void SiluMul(const Tensor& gate, const Tensor& up, const Tensor& out);

// Both gradients of SiluMul in one pass: grad_gate (+)= grad * up * silu'(gate) and
// grad_up (+)= grad * silu(gate). Either may be undefined and is then skipped. grad_gate may be
// `gate` and grad_up may be `up`.
void SiluMulBackward(const Tensor& grad, const Tensor& gate, const Tensor& up,
                     const Tensor& grad_gate, Write write_gate, const Tensor& grad_up,
                     Write write_up);

}  // namespace sherd::kernels
