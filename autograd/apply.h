#pragma once

#include <concepts>
#include <initializer_list>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "sherd/autograd/op.h"

namespace sherd {

namespace internal {

// A variable on its way into an op; nothing is copied. REQUIRES: the variable lives as long, as a
// temporary of the calling expression does.
struct Operand {
  Operand(const Variable& v) : variable(&v) {}  // NOLINT(google-explicit-constructor)
  const Variable* variable;
};
using Results = absl::InlinedVector<Variable, 2>;

// Apply, for an op of any type. Adds the outputs to `results`, which is empty before.
void ApplyValue(const OpValue& op, std::span<const Operand> inputs, CallSite site,
                Results& results);

}  // namespace internal

// The op seam: runs `op` and, while a Recording is on and an input wants a gradient, records it.
//
// Checks in this order, before any memory is touched: inputs defined, on one device, resident,
// usable in this recording; then the op's own Plan. Ownership: the tape keeps the op, the
// identities of inputs and outputs, and the values that the plan says backward reads. Cost: no heap
// allocation, once the tape has held as many ops before. Errors: sherd::Error with the op's name,
// the module path and the caller's line.
template <std::derived_from<Op> O>
std::vector<Variable> Apply(O op, std::span<const Variable> inputs, CallSite site) {
  internal::Results results;
  const absl::InlinedVector<internal::Operand, 4> operands(inputs.begin(), inputs.end());
  internal::ApplyValue(internal::ValueOf(op), operands, site, results);
  return {std::make_move_iterator(results.begin()), std::make_move_iterator(results.end())};
}

// Apply for the usual op with one output: ApplyOne(AddOp(), {a, b}, site).
template <std::derived_from<Op> O>
Variable ApplyOne(O op, std::initializer_list<internal::Operand> inputs, CallSite site) {
  internal::Results results;
  internal::ApplyValue(internal::ValueOf(op), {inputs.begin(), inputs.end()}, site, results);
  return std::move(results[0]);
}

// Throws kInvalidArgument "<what>: <names and descriptions of both operands>".
[[noreturn]] void RefuseOperands(std::string_view what, std::string_view name_a, const Tensor& a,
                                 std::string_view name_b, const Tensor& b);
[[noreturn]] void RefuseOperand(std::string_view what, std::string_view name, const Tensor& a);

}  // namespace sherd
