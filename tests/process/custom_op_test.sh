#!/usr/bin/env bash
# Runs the example that writes an op of its own: custom_op_test.sh <program>
set -u
if text=$("$1" 2>&1); then
  echo "PASS custom op: $(echo "$text" | tr '\n' ' ')"
else
  echo "FAIL custom op: $(echo "$text" | tail -3 | tr '\n' ' ')"
fi
