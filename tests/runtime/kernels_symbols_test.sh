#!/bin/sh
# Checks that objects with the loops of one instruction set share no function with anything else: see
# [Note: what a loop file may use] in runtime/kernels/internal/loops.h.
#
# Usage: kernels_symbols_test.sh <object>...
# A weak or unique symbol, or a global one outside of the object's own namespace, could replace or be
# replaced by another object's copy.
failed=0
for object in "$@"; do
  name=$(basename "$(dirname "$(dirname "$object")")")/$(basename "$object")
  shared=$(nm -C --defined-only "$object" | grep -E '^[0-9a-f]+ [A-Zuvw] ' |
    grep -v -E ' sherd::kernels::(baseline|avx2|avx512)::k[A-Z][A-Za-z]*Loops$')
  if [ -n "$shared" ]; then
    echo "FAIL $name: shares $(echo "$shared" | head -3 | tr '\n' ';')"
    failed=1
  else
    echo "PASS $name"
  fi
done
exit $failed
