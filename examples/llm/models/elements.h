#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sherd/runtime/core/dtype.h"
#include "sherd/runtime/core/tensor.h"

namespace llm {

// Elements of a file or of a tensor's memory: floats of any type, aligned to nothing in particular.
struct Elements {
  sherd::DType dtype = sherd::DType::kF32;
  const uint8_t* bytes = nullptr;
};

// Where element e of a matrix lies in its transpose: at (e % inner) * outer + e / inner. inner is
// the row length of the matrix, outer that of the transpose; 0: nothing is transposed.
struct Transposition {
  int64_t inner = 0;
  int64_t outer = 0;
};

// Writes elements [begin, end) of what `from` has, or of its transpose, to `out` in dtype `to`.
// Equal dtypes keep their bits; others are rounded to nearest. REQUIRES: float dtypes.
void CopyElements(const Elements& from, const Transposition& transposition, int64_t begin,
                  int64_t end, sherd::DType to, uint8_t* out);

// Copies host bytes to elements [begin, ...) of a flat tensor, on whatever device it is.
void Upload(std::span<const uint8_t> bytes, const sherd::Tensor& to, int64_t begin);

// A contiguous tensor's bytes on the host: its own where it is there, or a copy in `memory`.
const uint8_t* OnHost(const sherd::Tensor& tensor, std::vector<uint8_t>& memory);

}  // namespace llm
