#include "sherd/runtime/comm/internal/rank_sum.h"

#include <algorithm>
#include <type_traits>

#include "sherd/runtime/comm/internal/element_kinds.h"

namespace sherd::internal {
namespace {

// Elements summed at a time: the running sum stays in the first cache.
constexpr int64_t kBlock = 1024;

template <typename In, typename Out>
void SumBlocks(std::span<const void* const> inputs, const SumTarget& target, int64_t elems) {
  using Element = typename In::Element;
  using Sum = typename In::Sum;
  using Wide = std::common_type_t<Sum, typename Out::Sum>;
  Sum sum[kBlock];
  for (int64_t begin = 0; begin < elems; begin += kBlock) {
    const int64_t n = std::min(kBlock, elems - begin);
    const Element* first = static_cast<const Element*>(inputs[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] = In::Load(first[i]);
    for (const void* input : inputs.subspan(1)) {
      const Element* in = static_cast<const Element*>(input) + begin;
      for (int64_t i = 0; i < n; ++i) sum[i] += In::Load(in[i]);
    }
    auto* out = static_cast<typename Out::Element*>(target.out) + begin;
    if (target.add) {
      for (int64_t i = 0; i < n; ++i) {
        out[i] = Out::Store(static_cast<Wide>(Out::Load(out[i])) + static_cast<Wide>(sum[i]));
      }
    } else {
      for (int64_t i = 0; i < n; ++i) out[i] = Out::Store(sum[i]);
    }
  }
}

}  // namespace

void SumInRankOrder(std::span<const void* const> inputs, DType dtype, const SumTarget& target,
                    int64_t elems) {
  if (dtype == DType::kI32) {
    return SumBlocks<Plain<uint32_t>, Plain<uint32_t>>(inputs, target, elems);
  }
  if (dtype == DType::kI64) {
    return SumBlocks<Plain<uint64_t>, Plain<uint64_t>>(inputs, target, elems);
  }
  WithFloatKind(dtype, [&](auto in) {
    WithFloatKind(target.dtype,
                  [&](auto out) { SumBlocks<decltype(in), decltype(out)>(inputs, target, elems); });
  });
}

}  // namespace sherd::internal
