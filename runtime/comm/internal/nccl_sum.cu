#include "sherd/runtime/comm/internal/nccl_sum.h"

#include <algorithm>
#include <type_traits>

#include "sherd/runtime/cuda/internal/launch.h"
#include "sherd/runtime/cuda/internal/types.h"

namespace sherd::internal {
namespace {

// Elements of a thread: 8 or 16 bytes a load of what travels.
constexpr int kItems = 4;
constexpr int kThreads = 256;

// How elements of a dtype are read into a sum of type S and written from one.
template <typename T>
__device__ inline auto Load(T x) {
  if constexpr (std::is_integral_v<T>) {
    return x;
  } else {
    return cuda::Widen(x);
  }
}

// The f32 on the way from a double to a narrower float: cut off, with the last place saying whether
// anything was, so that the second rounding gives what one would have.
__device__ inline float RoundToOdd(double x) {
  const float nearest = static_cast<float>(x);
  const double back = static_cast<double>(nearest);
  const uint32_t bits = __float_as_uint(nearest);
  if (back == x || x != x || (bits & 1u) != 0) return nearest;
  const bool away = (back > x) == (x > 0);
  return __uint_as_float(away ? bits - 1 : bits + 1);
}

template <typename T, typename S>
__device__ inline T Store(S x) {
  if constexpr (std::is_same_v<T, S> || std::is_integral_v<T>) {
    return static_cast<T>(x);
  } else if constexpr (std::is_same_v<S, double> && sizeof(T) == 2) {
    return cuda::Rounder<T>::Round(RoundToOdd(x));
  } else {
    return cuda::Rounder<T>::Round(x);
  }
}

// Calls f with a value of the C++ type. The branch is the same for all threads of a launch.
template <typename W, typename F>
__device__ inline void WithType(DType dtype, const F& f) {
  if constexpr (std::is_integral_v<W>) {
    f(W());
  } else {
    if (dtype == DType::kF32) return f(float());
    if (dtype == DType::kBF16) return f(BFloat16());
    if (dtype == DType::kF16) return f(Float16());
    f(double());
  }
}

// Reads `count` elements at `at` as `get` wants them.
template <typename T, typename F>
__device__ inline void ForItems(const void* base, int64_t at, int count, bool packed,
                                const F& get) {
  const T* const from = static_cast<const T*>(base) + at;
  if (packed && count == kItems) {
    const auto pack = *reinterpret_cast<const cuda::Pack<T, kItems>*>(from);
    for (int i = 0; i < kItems; ++i) get(i, pack.v[i]);
  } else {
    for (int i = 0; i < count; ++i) get(i, from[i]);
  }
}

// W is what travels. Sums of integers wrap.
template <typename W>
__global__ void SumKernel(RankSum sum, bool packed) {
  using Element =
      std::conditional_t<std::is_integral_v<W>, std::make_unsigned<W>, std::type_identity<W>>::type;
  using S = decltype(Load(Element()));
  const int64_t own_row = blockIdx.y * sum.own_row;
  const int64_t out_row = blockIdx.y * sum.out_row;
  const int64_t step = int64_t{gridDim.x} * kThreads * kItems;
  for (int64_t at = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kItems; at < sum.elems;
       at += step) {
    const int count = sum.elems - at < kItems ? static_cast<int>(sum.elems - at) : kItems;
    S own[kItems], total[kItems];
    WithType<Element>(sum.own_dtype, [&](auto type) {
      ForItems<decltype(type)>(sum.own, own_row + at, count, packed,
                               [&](int i, auto x) { own[i] = Load(Store<Element>(Load(x))); });
    });
    for (int r = 0; r < sum.size; ++r) {
      const auto take = [&](int i, S x) { total[i] = r == 0 ? x : total[i] + x; };
      if (r == sum.rank) {
        for (int i = 0; i < count; ++i) take(i, own[i]);
      } else {
        ForItems<Element>(sum.parts, r * sum.stride + at, count, packed,
                          [&](int i, Element x) { take(i, Load(x)); });
      }
    }
    WithType<Element>(sum.out_dtype, [&](auto type) {
      using Out = decltype(type);
      using Wide =
          std::conditional_t<std::is_same_v<S, double> || std::is_same_v<Out, double>, double, S>;
      Out* const to = static_cast<Out*>(sum.out) + out_row + at;
      cuda::Pack<Out, kItems> pack;
      if (sum.add) {
        ForItems<Out>(sum.out, out_row + at, count, packed, [&](int i, Out there) {
          pack.v[i] = Store<Out>(static_cast<Wide>(Load(there)) + static_cast<Wide>(total[i]));
        });
      } else if (sum.rounded != sum.out_dtype) {
        WithType<Element>(sum.rounded, [&](auto between) {
          for (int i = 0; i < count; ++i) {
            pack.v[i] = Store<Out>(Load(Store<decltype(between)>(total[i])));
          }
        });
      } else {
        for (int i = 0; i < count; ++i) pack.v[i] = Store<Out>(total[i]);
      }
      if (packed && count == kItems) {
        *reinterpret_cast<cuda::Pack<Out, kItems>*>(to) = pack;
      } else {
        for (int i = 0; i < count; ++i) to[i] = pack.v[i];
      }
    });
  }
}

bool IsPacked(const void* address, DType dtype, int64_t distance) {
  const auto at = reinterpret_cast<uintptr_t>(address);
  return at % static_cast<uintptr_t>(kItems * SizeOf(dtype)) == 0 && distance % kItems == 0;
}

template <typename W>
void Run(const Device& device, const RankSum& sum) {
  const bool packed = IsPacked(sum.parts, sum.wire, sum.stride) &&
                      IsPacked(sum.own, sum.own_dtype, sum.own_row) &&
                      IsPacked(sum.out, sum.out_dtype, sum.out_row);
  const unsigned blocks = cuda::GridFor(device, sum.elems, kThreads * kItems);
  cuda::Launch(device,
               {.grid = dim3(blocks, static_cast<unsigned>(sum.rows)), .block = dim3(kThreads)},
               SumKernel<W>, sum, packed);
}

}  // namespace

void SumOnDevice(const Device& device, const RankSum& sum) {
  if (sum.elems == 0) return;
  switch (sum.wire) {
    case DType::kF32:
      return Run<float>(device, sum);
    case DType::kF64:
      return Run<double>(device, sum);
    case DType::kBF16:
      return Run<BFloat16>(device, sum);
    case DType::kF16:
      return Run<Float16>(device, sum);
    case DType::kI32:
      return Run<int32_t>(device, sum);
    case DType::kI64:
      return Run<int64_t>(device, sum);
  }
}

void CastOnDevice(const Device& device, const void* from, DType from_dtype, void* to,
                  DType to_dtype, int64_t elems, int64_t rows, int64_t from_row, int64_t to_row) {
  SumOnDevice(device, {.wire = to_dtype,
                       .own = from,
                       .own_dtype = from_dtype,
                       .out = to,
                       .rounded = to_dtype,
                       .out_dtype = to_dtype,
                       .elems = elems,
                       .rows = rows,
                       .own_row = from_row,
                       .out_row = to_row});
}

}  // namespace sherd::internal
