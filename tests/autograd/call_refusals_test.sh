#!/bin/bash
# What a module call refuses does not compile, and says why.
# Usage: call_refusals_test.sh <compiler> <include folder>...
set -u
compiler=$1
shift
flags=(-std=c++20 -fsyntax-only -w -x c++)
for folder in "$@"; do flags+=("-I$folder"); done

# check <what> <text in the compiler's message; empty: it compiles> <statement>
check() {
  local output
  output=$({ cat <<CODE
#include <functional>
#include <span>
#include <string_view>
#include <vector>
#include "sherd/autograd/call.h"
#include "sherd/checkpoint/checkpoint.h"
using sherd::Variable;
struct Layer : sherd::Module {
  Variable Run(const Variable& x) {
    int local = 1;
    std::vector<Variable> list;
    (void)local;
    $3
    return x;
  }
};
CODE
  } | "$compiler" "${flags[@]}" - 2>&1)
  local failed=$?
  if [ -z "$2" ] && [ $failed -eq 0 ]; then
    echo "PASS $1"
  elif [ -n "$2" ] && [ $failed -ne 0 ] && grep -qF "$2" <<<"$output"; then
    echo "PASS $1"
  else
    echo "FAIL $1: exit $failed, expected '$2' in: $(grep -m 2 error <<<"$output" | tr '\n' ' ')"
    result=1
  fi
}

result=0
dangles="would dangle in a recompute"
check "what is allowed compiles" "" \
  'return sherd::Call(*this, [](Layer&, const Variable& x, int, const std::vector<Variable>&) { return x; }, x, 3, list);'
check "a string view argument does not compile" "$dangles" \
  'sherd::Call(*this, [](Layer&, const std::string_view&) { return 1; }, std::string_view("a"));'
check "a string literal argument does not compile" "$dangles" \
  'sherd::Call(*this, [](Layer&, const char*) { return 1; }, "a");'
check "a span argument does not compile" "$dangles" \
  'sherd::Call(*this, [](Layer&, std::span<const Variable>) { return 1; }, std::span<const Variable>(list));'
check "a pointer argument does not compile" "$dangles" \
  'sherd::Call(*this, [](Layer&, int*) { return 1; }, &local);'
check "a reference wrapper does not compile" "$dangles" \
  'sherd::Call(*this, [](Layer&, const std::reference_wrapper<int>&) { return 1; }, std::ref(local));'
check "a capturing body does not compile" "captures nothing" \
  'sherd::Call(*this, [local](Layer&, const Variable& x) { return x; }, x);'
check "a body that returns nothing does not compile" "returns a value" \
  'sherd::Call(*this, [](Layer&, const Variable&) {}, x);'
check "a checkpointed function with a value capture compiles" "" \
  'return sherd::Checkpoint([local](const Variable& x) { return x; }, x);'
check "a string view argument of a checkpoint does not compile" "would dangle in the recompute" \
  'sherd::Checkpoint([](const Variable& x, const std::string_view&) { return x; }, x, std::string_view("a"));'
exit $result
