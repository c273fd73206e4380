#!/usr/bin/env bash
# Runs memory_step on two ranks: memory_test.sh <memory_step>.
set -u
program=$(readlink -f "${1:?usage: memory_test.sh <memory_step>}")
if ! command -v mpirun > /dev/null; then
  echo 'SKIP memory of a step on two ranks: mpirun is not installed'
  exit 0
fi
mpi=(timeout -k 5 240 mpirun --oversubscribe --bind-to none)
[ "$(id -u)" != 0 ] || mpi+=(--allow-run-as-root)
"${mpi[@]}" -np 2 "$program"
