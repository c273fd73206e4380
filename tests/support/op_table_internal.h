#pragma once

#include <vector>

#include "sherd/runtime/core/tensor.h"
#include "tests/support/op_table.h"

// What the two halves of the op table share.
namespace sherd::testing::op_table {

Device Cpu();

// x in another float dtype; exact when it widens.
Tensor CastTo(const Tensor& x, DType dtype);

// The elements of a float tensor in row-major order.
std::vector<double> Doubles(const Tensor& x);

// The values of the operand at `place` of its row, rounded to `dtype` unless they are integers.
Tensor MakeOperand(const Operand& operand, int place, DType dtype);

// A contiguous copy.
Tensor Packed(const Tensor& x);

// Whether a tensor of this shape can lie so in a way that differs from contiguous.
bool HasLayout(const Shape& shape, Layout layout);

// The same values laid out otherwise, in memory whose other elements are NaN; kExpanded repeats
// those of index 0 of the first dimension. REQUIRES: HasLayout.
Tensor InLayout(const Tensor& x, Layout layout);

}  // namespace sherd::testing::op_table
