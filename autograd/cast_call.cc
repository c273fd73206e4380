#include "sherd/autograd/cast_call.h"

#include <memory>
#include <utility>
#include <vector>

#include "sherd/autograd/ops/elementwise.h"

namespace sherd {

VariableVisitor CastTo(DType dtype) {
  using Pairs = std::vector<std::pair<Variable, Variable>>;
  // Visitors are copied, and share what they know.
  auto known = std::make_shared<Pairs>();
  return [dtype, known](Variable& variable) {
    if (!variable.defined() || !IsFloating(variable.dtype())) return;
    for (const auto& [from, to] : *known) {
      if (variable.ident() && variable.ident() == from.ident()) {
        variable = to;
        return;
      }
    }
    Variable cast = Cast(variable, dtype);
    if (variable.ident()) known->emplace_back(variable, cast);
    variable = std::move(cast);
  };
}

void ProceedIn(const CallContext& call, const CallDTypes& dtypes) {
  if (dtypes.arguments.has_value()) {
    const CallContext inner = call.WithOwnRecord();
    inner.record().VisitArguments(CastTo(*dtypes.arguments));
    inner.Proceed();
    call.record().TakeResultOf(inner.record());
  } else {
    call.Proceed();
  }
  if (dtypes.results.has_value()) call.record().VisitResult(CastTo(*dtypes.results));
}

}  // namespace sherd
