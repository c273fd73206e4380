#pragma once

#include <cstdint>

#include "sherd/runtime/core/device.h"
#include "sherd/runtime/core/dtype.h"

namespace sherd::internal {

// A sum over ranks in their order, on a device: out (+)= ((r0 + r1) + r2) + ..., as SumInRankOrder
// takes it on the CPU, bit for bit.
struct RankSum {
  DType wire = DType::kF32;  // of what has travelled
  int size = 1;
  int rank = 0;
  // Rank r's part is at element r * stride; this rank's own is elsewhere.
  const void* parts = nullptr;
  int64_t stride = 0;
  // Rounded to `wire` as it is read.
  const void* own = nullptr;
  DType own_dtype = DType::kF32;
  // The sum is rounded to `rounded` and then to `out_dtype`; the two are mostly the same. May be
  // `own` where the two have one dtype.
  void* out = nullptr;
  DType rounded = DType::kF32;
  DType out_dtype = DType::kF32;
  // To what is there, in f32, or f64 when either dtype is.
  bool add = false;
  int64_t elems = 0;
  // So many sums at once, one after another in memory at these distances, in elements; for casts.
  int64_t rows = 1;
  int64_t own_row = 0;
  int64_t out_row = 0;
};

// Queues the sum on the calling thread's queue of `device`. Reads and writes every element once.
//
// Shapes: elements are aligned to their dtype; four at a time where all are aligned to that.
// REQUIRES: dtypes are all floats, or all one integer type.
void SumOnDevice(const Device& device, const RankSum& sum);

// Queues a cast of rows: the sum of one rank.
void CastOnDevice(const Device& device, const void* from, DType from_dtype, void* to,
                  DType to_dtype, int64_t elems, int64_t rows = 1, int64_t from_row = 0,
                  int64_t to_row = 0);

}  // namespace sherd::internal
