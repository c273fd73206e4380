#!/usr/bin/env bash
# Runs the example of several forwards before one backward, alone and on 2 and 3 ranks, and reads its
# table: two_forwards_test.sh <program>
set -u
program=$1
run_as_root=()
[ "$(id -u)" = 0 ] && run_as_root=(--allow-run-as-root)

check() {  # <name> <command...>
  local name=$1 table rows bad
  shift
  if ! table=$("$@" 2>&1); then
    echo "FAIL $name: exit $?: $(echo "$table" | tail -3 | tr '\n' ' ')"
    return
  fi
  rows=$(echo "$table" | grep -c '^\(plain\|sharded\)')
  # A cell is "calls: error  hooks hooks".
  bad=$(echo "$table" | tr '|' '\n' | awk '/[123]: / && ($2 > 1e-12 || $3 != 1 || $4 != 1)')
  if [ "$rows" != 10 ] || [ -n "$bad" ]; then
    echo "FAIL $name: $rows rows of 10, wrong cells: $bad"
  else
    echo "PASS $name"
  fi
}

check "one process" "$program"
for ranks in 2 3; do
  check "mpirun $ranks ranks" mpirun "${run_as_root[@]}" --oversubscribe -n "$ranks" "$program"
done
