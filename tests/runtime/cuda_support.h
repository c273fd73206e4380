#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/runtime/kernels_support.h"
#include "tests/support/accelerator.h"
#include "tests/support/cuda_emulator/emulator.h"

// How the kernels of the CUDA backend, run by the emulator, are compared with those of the CPU.
namespace sherd::kernels::test {

// Both compute an element by the same source; on the baseline, where no multiplication is fused
// with an addition, in the same bits.
inline const Device& Cpu() {
  static const Device& device = *[] {
    auto* made = new Device(Device::Cpu());
    cpu::SetIsa(*made, cpu::Isa::kBaseline);
    return made;
  }();
  return device;
}

// Memory that the host must not touch; blocks and threads in a random order.
inline const Device& Gpu() {
  static const Device& device = *[] {
    emulated::Configure({.synchronous = true, .trap = true, .shuffle_seed = 7});
    std::string why;
    auto* made = new Device(testing::Accelerator(&why));
    EXPECT_TRUE(why.empty()) << why;
    return made;
  }();
  return device;
}

// The same elements on both devices.
struct Pair {
  Tensor cpu, gpu;
};

inline Pair PairOf(const Tensor& cpu) { return {cpu, testing::MoveTo(Gpu(), cpu)}; }

// A copy for the device. Undefined for an undefined x.
inline Tensor On(const Tensor& x) { return x.defined() ? testing::MoveTo(Gpu(), x) : Tensor(); }

// The bytes of a contiguous tensor of either device.
inline std::string HostBits(const Tensor& x) {
  std::string bits(static_cast<size_t>(x.bytes()), '\0');
  if (x.numel() > 0) x.device().CopyToHost(bits.data(), x.raw(), x.bytes());
  return bits;
}

// How far results of a dtype may be apart that were summed in another order: some roundings of it.
inline double CloseFor(DType dtype) {
  if (dtype == DType::kF64) return 1e-13;
  if (dtype == DType::kF32) return 5e-6;
  return dtype == DType::kF16 ? 1.5e-3 : 1.2e-2;
}

// How an operand lies in memory.
enum class View {
  kContiguous,
  kOffset,      // contiguous, one element behind what 16 bytes divide
  kPadded,      // rows of a wider tensor, aligned where the row's length allows
  kOddPadded,   // rows of a wider tensor, not aligned
  kTransposed,  // the last two dimensions exchanged
  kRepeatedRow,
  kRepeatedColumn,
};

inline Tensor Random(DType dtype, const Shape& shape, uint64_t seed) {
  if (IsFloating(dtype)) return ToTensor(Cpu(), RandomValues(dtype, shape, seed));
  const Tensor x = Tensor::Empty(Cpu(), dtype, shape);
  for (int64_t i = 0; i < x.numel(); ++i) {
    const auto value = static_cast<int64_t>(Philox4x32(seed, static_cast<uint64_t>(i), 3)[0]) - 9;
    if (dtype == DType::kI64) x.data<int64_t>()[i] = value;
    if (dtype == DType::kI32) x.data<int32_t>()[i] = static_cast<int32_t>(value);
  }
  return x;
}

// On the CPU; every element of the storage holds a value. REQUIRES: rank >= 2 for kTransposed.
inline Tensor Laid(View view, DType dtype, const Shape& shape, uint64_t seed) {
  const int last = shape.rank() - 1;
  Shape other = shape;
  switch (view) {
    case View::kContiguous:
      break;
    case View::kOffset:
      return Random(dtype, {shape.numel() + 1}, seed).Slice(0, 1, shape.numel() + 1).Reshape(shape);
    case View::kPadded:
      other[last] += 16;
      return Random(dtype, other, seed).Slice(last, 8, 8 + shape[last]);
    case View::kOddPadded:
      other[last] += 5;
      return Random(dtype, other, seed).Slice(last, 3, 3 + shape[last]);
    case View::kTransposed:
      std::swap(other[last], other[last - 1]);
      return Random(dtype, other, seed).Transpose(last - 1, last);
    case View::kRepeatedRow:
      other[0] = 1;
      return Random(dtype, other, seed).Expand(shape);
    case View::kRepeatedColumn:
      other[last] = 1;
      return Random(dtype, other, seed).Expand(shape);
  }
  return Random(dtype, shape, seed);
}

inline Pair LaidPair(View view, DType dtype, const Shape& shape, uint64_t seed) {
  return PairOf(Laid(view, dtype, shape, seed));
}

inline const char* NameOf(View view) {
  constexpr const char* kNames[] = {"contiguous", "offset",       "padded",         "odd padded",
                                    "transposed", "repeated row", "repeated column"};
  return kNames[static_cast<int>(view)];
}

// The value of an element of a float dtype, or the number that its bits are.
inline double ValueAt(DType dtype, const char* at) {
  if (dtype == DType::kF32) {
    float f;
    std::memcpy(&f, at, 4);
    return f;
  }
  double d;
  BFloat16 b;
  Float16 h;
  std::memcpy(&d, at, dtype == DType::kF64 ? 8 : 0);
  std::memcpy(&b, at, 2);
  std::memcpy(&h, at, 2);
  if (dtype == DType::kF64) return d;
  return dtype == DType::kBF16 ? static_cast<float>(b) : static_cast<float>(h);
}

// The whole storages agree, what lies around the views too: the bits (any NaN is any other's equal)
// or, with a tolerance, values relative to the larger of 1 and the element.
inline void ExpectSame(const Pair& x, const std::string& what, double tolerance = 0.0) {
  const int64_t bytes = x.cpu.storage()->bytes(), size = SizeOf(x.cpu.dtype());
  const DType dtype = x.cpu.dtype();
  ASSERT_EQ(bytes, x.gpu.storage()->bytes());
  std::vector<char> got(static_cast<size_t>(bytes));
  Gpu().CopyToHost(got.data(), x.gpu.storage()->data(), bytes);
  const char* const want = static_cast<const char*>(x.cpu.storage()->data());
  for (int64_t i = 0; i * size < bytes; ++i) {
    if (std::memcmp(&got[static_cast<size_t>(i * size)], want + i * size,
                    static_cast<size_t>(size)) == 0) {
      continue;
    }
    ASSERT_TRUE(IsFloating(dtype)) << what << ": element " << i << " of the storage differs";
    const double a = ValueAt(dtype, &got[static_cast<size_t>(i * size)]);
    const double b = ValueAt(dtype, want + i * size);
    if (std::isnan(a) && std::isnan(b)) continue;
    ASSERT_LE(std::abs(a - b), tolerance * std::max(1.0, std::abs(b)))
        << what << ": element " << i << " of the storage is " << a << ", on the CPU " << b;
    ASSERT_GT(tolerance, 0.0) << what << ": element " << i << " is " << a << ", on the CPU " << b;
  }
}

// The values of a tensor of either device, with FromTensor's check of what lies around them.
inline std::vector<double> HostValues(const Tensor& x) {
  if (x.device().backend() == nullptr) return FromTensor(x);
  const Storage& from = *x.storage();
  Ref<Storage> to = MakeRef<Storage>(Device::Cpu(), from.bytes(), MemoryCategory::kBuffer);
  to->Allocate();
  if (from.bytes() > 0) x.device().CopyToHost(to->data(), from.data(), from.bytes());
  return FromTensor(
      Tensor::View(std::move(to), x.offset_elems(), x.dtype(), x.shape(), x.strides()));
}

}  // namespace sherd::kernels::test
