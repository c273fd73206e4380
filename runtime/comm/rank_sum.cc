#include "sherd/runtime/comm/rank_sum.h"

#include <algorithm>

namespace sherd::internal {
namespace {

// Elements summed at a time: the running sum stays in the first cache.
constexpr int64_t kBlock = 1024;

template <typename T, typename Sum>
void SumBlocks(std::span<const void* const> inputs, void* out_bytes, int64_t elems, bool add) {
  Sum sum[kBlock];
  for (int64_t begin = 0; begin < elems; begin += kBlock) {
    const int64_t n = std::min(kBlock, elems - begin);
    const T* first = static_cast<const T*>(inputs[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] = static_cast<Sum>(first[i]);
    for (const void* input : inputs.subspan(1)) {
      const T* in = static_cast<const T*>(input) + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] += static_cast<Sum>(in[i]);
    }
    T* out = static_cast<T*>(out_bytes) + begin;
    if (add) {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(static_cast<Sum>(out[i]) + sum[i]);
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(sum[i]);
    }
  }
}

}  // namespace

void SumInRankOrder(std::span<const void* const> inputs, void* out, int64_t elems, DType dtype,
                    bool add) {
  switch (dtype) {
    case DType::kF32: return SumBlocks<float, float>(inputs, out, elems, add);
    case DType::kF64: return SumBlocks<double, double>(inputs, out, elems, add);
    case DType::kBF16: return SumBlocks<BFloat16, float>(inputs, out, elems, add);
    case DType::kI32: return SumBlocks<uint32_t, uint32_t>(inputs, out, elems, add);
    case DType::kI64: return SumBlocks<uint64_t, uint64_t>(inputs, out, elems, add);
  }
}

}  // namespace sherd::internal
