#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "sherd/autograd/variable.h"

namespace sherd {

// Finding the variables inside arguments and results of module calls.
//
// Wrappers need them: a checkpoint gives its results new identities, a unit copies results that are
// views of its memory. Containers of the standard library are known, in any nesting. The order of
// the visit is that of the elements, the same each time.

// Sees every Variable of a value; may replace it.
using VariableVisitor = std::function<void(Variable&)>;

// Users make their own structs visible by a function of this name in the struct's namespace:
//   void VisitVariables(MyBatch& batch, const sherd::VariableVisitor& visit) {
//     visit(batch.x);
//     VisitVariables(batch.rest, visit);
//   }
// Types without one hold no variables as far as the seams know.
//
// Ownership: the visitor sees the value in place; what it assigns stays there.
// REQUIRES: a visit changes no container's size.
inline void VisitVariables(Variable& variable, const VariableVisitor& visit) { visit(variable); }
template <typename T>
void VisitVariables(std::vector<T>& values, const VariableVisitor& visit);
template <typename T>
void VisitVariables(std::optional<T>& value, const VariableVisitor& visit);
template <typename T, size_t N>
void VisitVariables(std::array<T, N>& values, const VariableVisitor& visit);
template <typename K, typename T>
void VisitVariables(std::map<K, T>& values, const VariableVisitor& visit);
template <typename... T>
void VisitVariables(std::tuple<T...>& values, const VariableVisitor& visit);
template <typename A, typename B>
void VisitVariables(std::pair<A, B>& values, const VariableVisitor& visit);

namespace internal {
// [Note: unknown types are opaque]
// A struct without a VisitVariables is passed by. Its variables are then constants to no one: used
// outside the region they were born in they are an error that names the region.
//
// Visits what has a VisitVariables, and nothing else.
template <typename T>
void VisitAny(T& value, const VariableVisitor& visit) {
  if constexpr (requires { VisitVariables(value, visit); }) VisitVariables(value, visit);
}
}  // namespace internal

// Containers visit their elements in order; a map in the order of its keys, a pair first and
// second. Elements that hold no variables cost nothing.
template <typename T>
void VisitVariables(std::vector<T>& values, const VariableVisitor& visit) {
  if constexpr (!std::is_same_v<T, bool>) {
    for (T& value : values) internal::VisitAny(value, visit);
  }
}
template <typename T>
void VisitVariables(std::optional<T>& value, const VariableVisitor& visit) {
  if (value.has_value()) internal::VisitAny(*value, visit);
}
template <typename T, size_t N>
void VisitVariables(std::array<T, N>& values, const VariableVisitor& visit) {
  for (T& value : values) internal::VisitAny(value, visit);
}
template <typename K, typename T>
void VisitVariables(std::map<K, T>& values, const VariableVisitor& visit) {
  for (auto& [key, value] : values) internal::VisitAny(value, visit);
}
template <typename... T>
void VisitVariables(std::tuple<T...>& values, const VariableVisitor& visit) {
  std::apply([&](T&... value) { (internal::VisitAny(value, visit), ...); }, values);
}
template <typename A, typename B>
void VisitVariables(std::pair<A, B>& values, const VariableVisitor& visit) {
  internal::VisitAny(values.first, visit);
  internal::VisitAny(values.second, visit);
}

}  // namespace sherd
