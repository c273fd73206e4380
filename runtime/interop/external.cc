#include "sherd/runtime/interop/external.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "sherd/runtime/base/error.h"

namespace sherd {

Tensor WrapMemory(const Device& device, DType dtype, const Shape& shape,
                  std::shared_ptr<void> memory) {
  return WrapMemory(device, dtype, shape, shape.ContiguousStrides(), std::move(memory),
                    shape.numel() * SizeOf(dtype));
}

Tensor WrapMemory(const Device& device, DType dtype, const Shape& shape, const Shape& strides,
                  std::shared_ptr<void> memory, int64_t bytes) {
  const ErrorContext context{.op = "wrap_memory"};
  if (!device.defined()) ThrowInvalidArgument("an undefined device was given", context);
  const auto address = reinterpret_cast<uintptr_t>(memory.get());
  if (address % static_cast<uintptr_t>(SizeOf(dtype)) != 0 || (address == 0 && shape.numel() > 0)) {
    ThrowInvalidArgument(
        absl::StrCat(
            "memory for ", std::string(NameOf(dtype)), " ", shape.ToString(),
            address == 0 ? " is null" : " does not begin at a multiple of an element's size"),
        context);
  }
  return Tensor::View(MakeRef<Storage>(device, std::move(memory), bytes), 0, dtype, shape, strides);
}

}  // namespace sherd
