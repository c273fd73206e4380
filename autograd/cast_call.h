#pragma once

#include <optional>

#include "sherd/autograd/call.h"
#include "sherd/runtime/core/dtype.h"

namespace sherd {

// The dtypes a call runs in and answers in; unset: as they come.
struct CallDTypes {
  // Of the arguments, as the wrappers further in and the body see them.
  std::optional<DType> arguments;
  // Of the result, as the caller sees it.
  std::optional<DType> results;
};

// A visitor that casts every floating variable it sees to `dtype`, on the tape, so that gradients
// flow through.
//
// Integers, undefined variables and those of that dtype already stay what they are. A variable that
// comes several times is cast once and stays one variable. REQUIRES: a float dtype.
// Ownership: the visitor remembers what it has cast as long as it lives.
VariableVisitor CastTo(DType dtype);

// Proceeds with `call` in other dtypes: for wrappers, in place of call.Proceed().
//
// A wrapper further in, or further out, may be a checkpoint: one further in keeps the arguments as
// they were cast, one further out those of the caller, and both recompute with the same bits. The
// casts are ordinary ops; random numbers of the call do not depend on them.
// Cost: nothing where `dtypes` is empty; else a copy of the arguments' handles, and for each
//   variable of another dtype one cast, whose backward is one more.
// Errors: those of the call. Its record then has no result.
void ProceedIn(const CallContext& call, const CallDTypes& dtypes);

}  // namespace sherd
