#!/usr/bin/env bash
# What the engine costs where nothing is exchanged: llama_cost.sh <llama_step>
#
# The fourth step of the Llama "tiny" shape, one rank, one thread, batch 1, 64 tokens, f32: instructions
# counted by callgrind and heap allocations, with the engine (a unit for each block and the model) and
# without it; then the counted memory of the units beside a plan's. Exits with 1 if the engine adds more
# than 0.5 % of the instructions or any allocation. Callgrind repeats to 0.002 %, so no quiet machine is needed.
set -u -o pipefail
step=$(readlink -f "${1:?usage: llama_cost.sh <llama_step>}")
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
arguments=(--shape tiny --batch 1 --seq 64 --steps 1 --warmup 3 --no-floor)

# Prints the instructions of one step, then its heap allocations.
measure() {
  valgrind --tool=callgrind --instr-atstart=no --callgrind-out-file="$work/out" "$step" "${arguments[@]}" "$@" > "$work/line" 2> "$work/log" || { cat "$work/log" >&2; return 1; }
  grep -o 'Collected : [0-9]*' "$work/log" | awk '{ print $3 }' OFMT=%.0f
  grep -o 'heap_allocations_a_step": [0-9.]*' "$work/line" | awk '{ print $2 }'
}

mapfile -t plain < <(measure --plain)
mapfile -t sharded < <(measure)
[ "${#plain[@]}" = 2 ] && [ "${#sharded[@]}" = 2 ] || { echo 'llama_cost.sh: a run failed' >&2; exit 1; }
"$step" "${arguments[@]}" --plan | grep planned
awk -v p="${plain[0]}" -v s="${sharded[0]}" -v pa="${plain[1]}" -v sa="${sharded[1]}" 'BEGIN {
  over = 100 * (s - p) / p
  printf "instructions a step: %d without the engine, %d with it: %+.3f %% (bound 0.5 %%)\n", p, s, over
  printf "heap allocations a step: %.1f without, %.1f with: %+.1f (bound 0)\n", pa, sa, sa - pa
  exit over > 0.5 || sa > pa
}'
