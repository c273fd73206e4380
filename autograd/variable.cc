#include "sherd/autograd/variable.h"

#include <utility>

#include "sherd/runtime/base/error.h"

namespace sherd {

Variable Variable::Leaf(Tensor value) {
  if (!value.defined() || !IsFloating(value.dtype())) {
    ThrowInvalidArgument("a leaf needs a float tensor, got " + value.ToString(), {.op = "leaf"});
  }
  return Variable(std::move(value), MakeRef<internal::Ident>());
}

}  // namespace sherd
