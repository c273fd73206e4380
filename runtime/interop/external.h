#pragma once

#include <cstdint>
#include <memory>

#include "sherd/runtime/core/tensor.h"

namespace sherd {

// A tensor over memory of another program, without a copy.
//
// Whoever reads or writes one sees the other. The bytes are not counted by the device's allocator.
// Shapes: `shape`, its elements one after another in row-major order.
// Ownership: the last view of the tensor lets go of `memory`, whose deleter says what happens then:
//   std::shared_ptr<void>(pointer, [owner](void*) {}) keeps an owner alive,
//   std::shared_ptr<void>(pointer, free) hands the memory over.
// Threads: the deleter runs on whatever thread lets go last; it must not throw.
// Errors: kInvalidArgument for a null pointer to elements, or one that is not aligned to them.
// REQUIRES: the memory is that large, lies on `device`, and is written by nobody while ops read it.
Tensor WrapMemory(const Device& device, DType dtype, const Shape& shape,
                  std::shared_ptr<void> memory);

// The same for elements that lie apart: `strides` in elements, none negative, 0 to repeat an
// extent. `bytes` are from the pointer to the end of the memory. Errors: also kInvalidArgument if
// an element lies outside.
Tensor WrapMemory(const Device& device, DType dtype, const Shape& shape, const Shape& strides,
                  std::shared_ptr<void> memory, int64_t bytes);

}  // namespace sherd
