#include "sherd/runtime/kernels/rope.h"

#include <cmath>
#include <vector>

#include "sherd/runtime/kernels/internal/backend.h"
#include "sherd/runtime/kernels/internal/loops_of.h"
#include "sherd/runtime/kernels/internal/views.h"
#include "sherd/runtime/kernels/pack.h"

namespace sherd::kernels {
namespace {

template <typename T>
RopeTables Tables(const Device& device, const Shape& shape, int64_t head_size, double theta) {
  std::vector<T> cos(static_cast<size_t>(shape.numel())), sin(cos.size());
  const int64_t positions = shape[0], half = shape[1];
  for (int64_t i = 0; i < half; ++i) {
    const double frequency =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_size));
    for (int64_t t = 0; t < positions; ++t) {
      const double angle = static_cast<double>(t) * frequency;
      cos[static_cast<size_t>(t * half + i)] = static_cast<T>(std::cos(angle));
      sin[static_cast<size_t>(t * half + i)] = static_cast<T>(std::sin(angle));
    }
  }
  return {Tensor::FromHost<T>(device, cos, shape), Tensor::FromHost<T>(device, sin, shape)};
}

}  // namespace

RopeTables MakeRopeTables(const Device& device, DType dtype, int64_t positions, int64_t head_size,
                          double theta) {
  SHERD_CHECK(head_size % 2 == 0, "rotary embedding needs an even head size");
  SHERD_CHECK(dtype == DType::kF32 || dtype == DType::kF64, "rope tables are f32 or f64");
  const Shape shape = {positions, head_size / 2};
  return dtype == DType::kF64 ? Tables<double>(device, shape, head_size, theta)
                              : Tables<float>(device, shape, head_size, theta);
}

void Rope(const Tensor& x, const Tensor& cos, const Tensor& sin, int64_t first_position,
          bool inverse, const Tensor& out, Write write) {
  if (const KernelBackend* const other = BackendOf(out)) {
    return other->Rope(x, cos, sin, first_position, inverse, out, write);
  }
  if (!IsInnermostPacked(x)) {
    return Rope(PackInnermost(x), cos, sin, first_position, inverse, out, write);
  }
  SHERD_CHECK(x.rank() == 4 && x.shape() == out.shape() && x.dtype() == out.dtype(),
              "rope takes and gives [B, T, H, D] of one dtype");
  const int64_t tokens = x.dim(1), heads = x.dim(2), head_size = x.dim(3);
  const DType table_dtype = internal::ComputeDType(x.dtype());
  SHERD_CHECK(cos.dtype() == table_dtype && sin.dtype() == table_dtype &&
                  cos.shape() == sin.shape() && cos.rank() == 2 && cos.is_contiguous() &&
                  sin.is_contiguous() && 2 * cos.dim(1) == head_size && first_position >= 0 &&
                  first_position + tokens <= cos.dim(0),
              "rope tables do not fit the input");
  if (x.numel() == 0) return;
  SHERD_CHECK(x.strides()[3] == 1 && out.strides()[3] == 1, "channels of a head are not adjacent");
  const auto loop = internal::LoopsOf(x.device()).row->rope[internal::FloatIndex(x.dtype())];
  const int64_t elem_bytes = SizeOf(x.dtype()), table_bytes = SizeOf(table_dtype);
  const auto address = [&](const Tensor& tensor, int64_t b, int64_t t) {
    return internal::Address(tensor) +
           (b * tensor.strides()[0] + t * tensor.strides()[1]) * elem_bytes;
  };
  x.device().pool().ParallelFor(
      x.dim(0) * tokens, internal::GrainOf(heads * head_size), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t b = i / tokens, t = i % tokens;
          const int64_t row = (first_position + t) * (head_size / 2) * table_bytes;
          loop({.x = address(x, b, t),
                .out = address(out, b, t),
                .cos = internal::Address(cos) + row,
                .sin = internal::Address(sin) + row,
                .heads = heads,
                .half = head_size / 2,
                .x_stride = x.strides()[2],
                .out_stride = out.strides()[2],
                .inverse = inverse,
                .add = write == Write::kAdd});
        }
      });
}

}  // namespace sherd::kernels
