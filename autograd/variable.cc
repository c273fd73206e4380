#include "sherd/autograd/variable.h"

#include <utility>

namespace sherd {

Variable Variable::Leaf(Tensor value) {
  return Variable(std::move(value), MakeRef<internal::Ident>());
}

}  // namespace sherd
