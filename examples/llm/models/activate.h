#pragma once

#include "llm/models/activation.h"
#include "sherd/autograd/variable.h"

namespace llm {

// The activation of every element. Shapes: the result is x's.
sherd::Variable Activate(const sherd::Variable& x, Activation activation);

}  // namespace llm
