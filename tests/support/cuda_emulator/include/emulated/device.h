#pragma once

#include <math.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulated/vector_types.h"

// What device code sees: a kernel is a plain function, run once for each thread of the grid.

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
// All threads of a block run on one thread of the system, and blocks one after another.
#define __shared__ static thread_local

extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;
constexpr int warpSize = 32;

// The backend's own words, as launch.h and types.h of runtime/cuda define them for a device.
#define SHERD_HOST_DEVICE
#define SHERD_DYNAMIC_SHARED(T, name) \
  T* const name = reinterpret_cast<T*>(::emulated::DynamicShared())

namespace emulated {

// The line of a barrier or of a warp's operation: threads that should meet name the same one.
struct Site {
  const char* file;
  int line;
  static constexpr Site Here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
};

enum class Meeting { kNone, kSyncthreads, kSyncwarp, kShuffle, kBallot, kMma };

// Waits for the other threads of the block that still run; returns how many passed non-zero.
int MeetBlock(int predicate, Site site);

// Waits for the lanes of `mask` that still run. kShuffle: returns the value of lane `source`, all
// ones if that lane does not take part. kBallot: a bit per lane whose value is not zero. kMma:
// values are addresses of MmaOperands.
uint64_t MeetWarp(Meeting meeting, unsigned mask, uint64_t value, int source, Site site);

// The lane of the calling thread, and the lanes of its warp that still run.
int Lane();
unsigned LiveLanes();

// The dynamic shared memory of the running block, aligned to 16 bytes.
unsigned char* DynamicShared();

struct MmaOperands {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
  const float* c;
  bool is_bf16;
};

// What PTX's mma.sync.m16n8k16.row.col.f32.{bf16,f16}.{bf16,f16}.f32 does: d = a b + c for a 16 x 8
// tile, each lane holding its fragments. REQUIRES: all 32 lanes call it.
inline void MmaM16N8K16(float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4],
                        bool is_bf16, Site site = Site::Here()) {
  MmaOperands operands{d, a, b, c, is_bf16};
  MeetWarp(Meeting::kMma, 0xffffffffu, reinterpret_cast<uint64_t>(&operands), 0, site);
}

template <typename T>
T Shuffle(unsigned mask, T value, int source, Site site) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = MeetWarp(Meeting::kShuffle, mask, bits, source, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename To, typename From>
To BitCast(From from) {
  return std::bit_cast<To>(from);
}

template <typename T, typename Change>
T AtomicUpdate(T* address, Change change) {
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  for (;;) {
    T changed = change(old);
    if (__atomic_compare_exchange(address, &old, &changed, false, __ATOMIC_RELAXED,
                                  __ATOMIC_RELAXED)) {
      return old;
    }
  }
}

}  // namespace emulated

using EmulatedSite = emulated::Site;

inline void __syncthreads(EmulatedSite site = EmulatedSite::Here()) {
  emulated::MeetBlock(0, site);
}
inline int __syncthreads_count(int predicate, EmulatedSite site = EmulatedSite::Here()) {
  return emulated::MeetBlock(predicate, site);
}
inline int __syncthreads_or(int predicate, EmulatedSite site = EmulatedSite::Here()) {
  return emulated::MeetBlock(predicate, site) != 0;
}
inline int __syncthreads_and(int predicate, EmulatedSite site = EmulatedSite::Here()) {
  return emulated::MeetBlock(!predicate, site) == 0;
}
inline void __syncwarp(unsigned mask = 0xffffffffu, EmulatedSite site = EmulatedSite::Here()) {
  emulated::MeetWarp(emulated::Meeting::kSyncwarp, mask, 0, 0, site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate,
                              EmulatedSite site = EmulatedSite::Here()) {
  return static_cast<unsigned>(
      emulated::MeetWarp(emulated::Meeting::kBallot, mask, predicate != 0, 0, site));
}
inline int __any_sync(unsigned mask, int predicate, EmulatedSite site = EmulatedSite::Here()) {
  return __ballot_sync(mask, predicate, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate, EmulatedSite site = EmulatedSite::Here()) {
  return __ballot_sync(mask, !predicate, site) == 0;
}
inline unsigned __activemask() { return emulated::LiveLanes(); }

// A source outside the segment of `width` lanes is the lane itself, as CUDA says.
template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32,
              EmulatedSite site = EmulatedSite::Here()) {
  const int first = emulated::Lane() & ~(width - 1);
  return emulated::Shuffle(mask, value, first + (source & (width - 1)), site);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                  EmulatedSite site = EmulatedSite::Here()) {
  const int lane = emulated::Lane();
  const int source = lane ^ lanes;
  const bool inside = source < (lane & ~(width - 1)) + width;  // a lower segment may be read
  return emulated::Shuffle(mask, value, inside ? source : lane, site);
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   EmulatedSite site = EmulatedSite::Here()) {
  const int lane = emulated::Lane();
  const int inside = (lane & (width - 1)) + static_cast<int>(delta);
  return emulated::Shuffle(mask, value, inside < width ? lane + static_cast<int>(delta) : lane,
                           site);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                 EmulatedSite site = EmulatedSite::Here()) {
  const int lane = emulated::Lane();
  const int inside = (lane & (width - 1)) - static_cast<int>(delta);
  return emulated::Shuffle(mask, value, inside >= 0 ? lane - static_cast<int>(delta) : lane, site);
}

// Atomics are relaxed, as on the device; a fence orders nothing between streams.
#define EMULATED_ATOMICS(type)                                                               \
  inline type atomicExch(type* address, type value) {                                        \
    return emulated::AtomicUpdate(address, [&](type) { return value; });                     \
  }                                                                                          \
  inline type atomicAdd(type* address, type value) {                                         \
    return emulated::AtomicUpdate(address,                                                   \
                                  [&](type old) { return static_cast<type>(old + value); }); \
  }
#define EMULATED_INTEGER_ATOMICS(type)                                                      \
  EMULATED_ATOMICS(type)                                                                    \
  inline type atomicMax(type* address, type value) {                                        \
    return emulated::AtomicUpdate(address, [&](type old) { return std::max(old, value); }); \
  }                                                                                         \
  inline type atomicMin(type* address, type value) {                                        \
    return emulated::AtomicUpdate(address, [&](type old) { return std::min(old, value); }); \
  }                                                                                         \
  inline type atomicOr(type* address, type value) {                                         \
    return emulated::AtomicUpdate(address, [&](type old) { return old | value; });          \
  }                                                                                         \
  inline type atomicCAS(type* address, type compare, type value) {                          \
    return emulated::AtomicUpdate(address,                                                  \
                                  [&](type old) { return old == compare ? value : old; });  \
  }
EMULATED_INTEGER_ATOMICS(int)
EMULATED_INTEGER_ATOMICS(unsigned)
EMULATED_INTEGER_ATOMICS(unsigned long long)
EMULATED_ATOMICS(float)
inline double atomicAdd(double* address, double value) {
  return emulated::AtomicUpdate(address, [&](double old) { return old + value; });
}
#undef EMULATED_INTEGER_ATOMICS
#undef EMULATED_ATOMICS

inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
void __stcs(T* address, T value) {
  *address = value;
}

inline unsigned __float_as_uint(float x) { return emulated::BitCast<unsigned>(x); }
inline int __float_as_int(float x) { return emulated::BitCast<int>(x); }
inline float __uint_as_float(unsigned x) { return emulated::BitCast<float>(x); }
inline float __int_as_float(int x) { return emulated::BitCast<float>(x); }
inline long long __double_as_longlong(double x) { return emulated::BitCast<long long>(x); }
inline double __longlong_as_double(long long x) { return emulated::BitCast<double>(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline int __float2int_rn(float x) { return static_cast<int>(rintf(x)); }

// The C library declares these names for itself.
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __powf(x, y) powf(x, y)

// CUDA's min and max take any two numbers of a kind.
#define EMULATED_MIN_MAX(type)                                 \
  constexpr type min(type a, type b) { return b < a ? b : a; } \
  constexpr type max(type a, type b) { return a < b ? b : a; }
EMULATED_MIN_MAX(int)
EMULATED_MIN_MAX(unsigned)
EMULATED_MIN_MAX(long)
EMULATED_MIN_MAX(unsigned long)
EMULATED_MIN_MAX(long long)
EMULATED_MIN_MAX(unsigned long long)
#undef EMULATED_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
