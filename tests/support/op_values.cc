// The operands of the op table: how they are described, made, and laid out.

#include <cmath>
#include <cstdio>
#include <limits>

#include "sherd/runtime/kernels/elementwise.h"
#include "tests/support/op_table_internal.h"
#include "tests/support/tensors.h"

namespace sherd::testing {
namespace {

uint64_t SplitMix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

double Uniform(uint64_t place, uint64_t index, uint64_t draw) {
  const uint64_t counter = (place << 40) + 4 * index + draw + 1;
  return static_cast<double>(SplitMix(counter * 0x9E3779B97F4A7C15u) >> 11) * 0x1p-53;
}

double NormalValue(uint64_t place, uint64_t i) {
  const double total =
      Uniform(place, i, 0) + Uniform(place, i, 1) + Uniform(place, i, 2) + Uniform(place, i, 3);
  return (total - 2.0) * std::sqrt(3.0);
}

double ValueOf(const Operand& operand, uint64_t place, uint64_t i) {
  switch (operand.values) {
    case Values::kNormal:
      return NormalValue(place, i);
    case Values::kPositive:
      return 0.5 + 1.5 * Uniform(place, i, 0);
    case Values::kProbability:
      return 0.05 + 0.9 * Uniform(place, i, 0);
    case Values::kApart: {
      const double x = NormalValue(place, i);
      return x + (x >= 0 ? 0.1 : -0.1);
    }
    case Values::kIds:
      return std::floor(Uniform(place, i, 0) * static_cast<double>(operand.limit));
    case Values::kMask:
      return std::floor(Uniform(place, i, 0) * 2.0);
    case Values::kGiven:
      return operand.given[i];
  }
  return 0.0;
}

// What memory holds that no op may read: NaN, and an integer that is no index.
void Poison(const Tensor& tensor) {
  kernels::Fill(tensor,
                IsFloating(tensor.dtype()) ? std::numeric_limits<double>::quiet_NaN() : 1e9);
}

}  // namespace

Operand Operand::Constant() const {
  Operand constant = *this;
  constant.wants_grad = false;
  return constant;
}

Operand Operand::I32() const {
  Operand narrow = *this;
  narrow.dtype = DType::kI32;
  return narrow;
}

std::string Operand::ToString() const {
  static const char* const kNames[] = {"normal", "positive", "probability", "apart",
                                       "ids",    "mask",     "given"};
  std::string text = kNames[static_cast<int>(values)];
  if (values == Values::kIds) text += "(" + std::to_string(limit) + ")";
  if (values == Values::kGiven) {
    for (size_t i = 0; i < given.size(); ++i) {
      char number[32];
      std::snprintf(number, sizeof number, "%.17g", given[i]);
      text += (i == 0 ? "(" : ", ") + std::string(number);
    }
    text += ")";
  }
  return text + shape.ToString();
}

Operand Normal(const Shape& shape) { return {.values = Values::kNormal, .shape = shape}; }
Operand Positive(const Shape& shape) { return {.values = Values::kPositive, .shape = shape}; }
Operand Probability(const Shape& shape) { return {.values = Values::kProbability, .shape = shape}; }
Operand Apart(const Shape& shape) { return {.values = Values::kApart, .shape = shape}; }

Operand Ids(const Shape& shape, int64_t limit) {
  return {.values = Values::kIds,
          .shape = shape,
          .wants_grad = false,
          .limit = limit,
          .dtype = DType::kI64};
}

Operand Mask(const Shape& shape) {
  return {.values = Values::kMask, .shape = shape, .wants_grad = false, .dtype = DType::kI64};
}

Operand GivenIds(const std::vector<int64_t>& ids, const Shape& shape) {
  return {.values = Values::kGiven,
          .shape = shape,
          .wants_grad = false,
          .given = {ids.begin(), ids.end()},
          .dtype = DType::kI64};
}

Operand GivenFloats(const std::vector<double>& values, const Shape& shape) {
  return {.values = Values::kGiven, .shape = shape, .given = values};
}

const char* NameOf(Layout layout) {
  static const char* const kNames[] = {"offset", "columns", "reversed", "expanded"};
  return kNames[static_cast<int>(layout)];
}

namespace op_table {

Device Cpu() {
  static const Device device = Device::Cpu();
  return device;
}

Tensor CastTo(const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const Tensor out = Tensor::Empty(Cpu(), dtype, x.shape());
  kernels::Cast(x, out);
  return out;
}

std::vector<double> Doubles(const Tensor& x) { return CastTo(x, DType::kF64).ToHost<double>(); }

Tensor MakeOperand(const Operand& operand, int place, DType dtype) {
  std::vector<double> values(static_cast<size_t>(operand.shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ValueOf(operand, static_cast<uint64_t>(place), i);
  }
  if (operand.dtype == DType::kI64) {
    return TensorOf<int64_t>(Cpu(), {values.begin(), values.end()}, operand.shape);
  }
  if (operand.dtype == DType::kI32) {
    return TensorOf<int32_t>(Cpu(), {values.begin(), values.end()}, operand.shape);
  }
  return CastTo(TensorOf<double>(Cpu(), values, operand.shape), dtype);
}

Tensor Packed(const Tensor& x) {
  const Tensor copy = Tensor::Empty(Cpu(), x.dtype(), x.shape());
  kernels::Copy(x, copy);
  return copy;
}

bool HasLayout(const Shape& shape, Layout layout) {
  if (layout == Layout::kOffset) return true;
  if (shape.rank() == 0) return false;
  return layout != Layout::kExpanded || shape[0] > 1;
}

Tensor InLayout(const Tensor& x, Layout layout) {
  const int last = x.rank() - 1;
  Tensor view;
  if (layout == Layout::kExpanded) return Packed(x.Slice(0, 0, 1)).Expand(x.shape());
  if (layout == Layout::kOffset) {
    const Tensor base = Tensor::Empty(Cpu(), x.dtype(), {x.numel() + 5});
    Poison(base);
    view = Tensor::View(base.storage(), 3, x.dtype(), x.shape());
  } else if (layout == Layout::kColumns) {
    Shape wide = x.shape();
    wide[last] += 3;
    const Tensor base = Tensor::Empty(Cpu(), x.dtype(), wide);
    Poison(base);
    view = base.Slice(last, 1, 1 + x.dim(last));
  } else if (last == 0) {
    const Tensor base = Tensor::Empty(Cpu(), x.dtype(), {x.numel(), 2});
    Poison(base);
    view = base.Slice(1, 1, 2).Reshape({x.numel()});
  } else {
    std::vector<int64_t> extents;
    std::vector<int> order;
    for (int i = last; i >= 0; --i) {
      extents.push_back(x.dim(i));
      order.push_back(i);
    }
    view = Tensor::Empty(Cpu(), x.dtype(), Shape(extents)).Permute(order);
  }
  kernels::Copy(x, view);
  return view;
}

}  // namespace op_table
}  // namespace sherd::testing
