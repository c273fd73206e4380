#pragma once

#include <concepts>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "sherd/autograd/op.h"

namespace sherd {

// The op seam: runs `op` and, while a Recording is on and an input wants a gradient, records it.
//
// Checks in this order, before any memory is touched: inputs defined, on one device, resident,
// usable in this recording; then the op's own Plan. Ownership: the tape keeps the op, the
// identities of inputs and outputs, and the values that the plan says backward reads. Errors:
// sherd::Error with the op's name, the module path and the caller's line.
std::vector<Variable> Apply(std::shared_ptr<const Op> op, std::span<const Variable> inputs,
                            CallSite site);

// Apply for the usual op with one output.
Variable ApplyOne(std::shared_ptr<const Op> op, std::initializer_list<Variable> inputs,
                  CallSite site);

// The same for an op given as a value, the usual way: ApplyOne(AddOp(), {a, b}, site).
template <std::derived_from<Op> O>
std::vector<Variable> Apply(O op, std::span<const Variable> inputs, CallSite site) {
  return Apply(std::shared_ptr<const Op>(std::make_shared<const O>(std::move(op))), inputs, site);
}
template <std::derived_from<Op> O>
Variable ApplyOne(O op, std::initializer_list<Variable> inputs, CallSite site) {
  return ApplyOne(std::shared_ptr<const Op>(std::make_shared<const O>(std::move(op))), inputs,
                  site);
}

// Throws kInvalidArgument "<what>: <names and descriptions of both operands>".
[[noreturn]] void RefuseOperands(std::string_view what, std::string_view name_a, const Tensor& a,
                                 std::string_view name_b, const Tensor& b);
[[noreturn]] void RefuseOperand(std::string_view what, std::string_view name, const Tensor& a);

}  // namespace sherd
