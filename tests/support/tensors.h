#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "sherd/runtime/base/error.h"
#include "sherd/runtime/core/random.h"
#include "sherd/runtime/core/tensor.h"

namespace sherd::testing {

// A tensor of the given values. `T` decides the dtype.
template <typename T>
Tensor TensorOf(const Device& device, const std::vector<T>& values, const Shape& shape) {
  return Tensor::FromHost<T>(device, std::span<const T>(values.data(), values.size()), shape);
}

// Normal values times `scale`, the same for the same seed in every dtype (f32 or f64).
inline Tensor NormalTensor(const Device& device, DType dtype, const Shape& shape, uint64_t seed,
                           double scale = 1.0) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto words = Philox4x32(seed, i, 11);
    values[i] = scale * sherd::Normal(words[0], words[1]);
  }
  if (dtype == DType::kF64) return TensorOf<double>(device, values, shape);
  return TensorOf<float>(device, {values.begin(), values.end()}, shape);
}

// Whether two tensors have the same shape, dtype and bits.
inline bool SameBits(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype()) return false;
  if (a.numel() == 0) return true;
  return std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0;
}

// The text of the sherd::Error that `fn` throws; "no error" if it throws nothing.
template <typename Fn>
std::string ErrorOf(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

inline ::testing::AssertionResult Contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "'" << text << "' does not contain '" << part << "'";
}

}  // namespace sherd::testing
