#include "sherd/runtime/comm/internal/rank_sum.h"

#include <algorithm>
#include <bit>

namespace sherd::internal {
namespace {

// Elements summed at a time: the running sum stays in the first cache.
constexpr int64_t kBlock = 1024;

// How an element is read into, and written from, its running sum. The bf16 ones spell out the bits,
// so that the loops vectorise.
template <typename T>
struct Plain {
  using Element = T;
  using Sum = T;
  static Sum Load(Element x) { return x; }
  static Element Store(Sum x) { return x; }
};

struct Bf16 {
  using Element = uint16_t;
  using Sum = float;
  static float Load(uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
  static uint16_t Store(float x) {
    const uint32_t u = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = u + 0x7FFFu + ((u >> 16) & 1u);
    const uint32_t quiet = u | 0x400000u;
    return static_cast<uint16_t>((x == x ? rounded : quiet) >> 16);
  }
};

struct F16 {
  using Element = uint16_t;
  using Sum = float;
  static float Load(uint16_t bits) {
    Float16 x;
    x.bits = bits;
    return static_cast<float>(x);
  }
  static uint16_t Store(float x) { return Float16(x).bits; }
};

template <typename Kind>
void SumBlocks(std::span<const void* const> inputs, void* out_bytes, int64_t elems, bool add) {
  using Element = typename Kind::Element;
  typename Kind::Sum sum[kBlock];
  for (int64_t begin = 0; begin < elems; begin += kBlock) {
    const int64_t n = std::min(kBlock, elems - begin);
    const Element* first = static_cast<const Element*>(inputs[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] = Kind::Load(first[i]);
    for (const void* input : inputs.subspan(1)) {
      const Element* in = static_cast<const Element*>(input) + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] += Kind::Load(in[i]);
    }
    Element* out = static_cast<Element*>(out_bytes) + begin;
    if (add) {
      for (int64_t i = 0; i < n; ++i) out[i] = Kind::Store(Kind::Load(out[i]) + sum[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = Kind::Store(sum[i]);
    }
  }
}

}  // namespace

void SumInRankOrder(std::span<const void* const> inputs, void* out, int64_t elems, DType dtype,
                    bool add) {
  switch (dtype) {
    case DType::kF32:
      return SumBlocks<Plain<float>>(inputs, out, elems, add);
    case DType::kF64:
      return SumBlocks<Plain<double>>(inputs, out, elems, add);
    case DType::kBF16:
      return SumBlocks<Bf16>(inputs, out, elems, add);
    case DType::kF16:
      return SumBlocks<F16>(inputs, out, elems, add);
    case DType::kI32:
      return SumBlocks<Plain<uint32_t>>(inputs, out, elems, add);
    case DType::kI64:
      return SumBlocks<Plain<uint64_t>>(inputs, out, elems, add);
  }
}

}  // namespace sherd::internal
