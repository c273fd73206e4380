#!/usr/bin/env bash
# Runs what this folder holds on the GPUs of this machine, in at most 8 minutes, and writes
# results/results.json and results/table.txt. Without a GPU it says so for every part and ends well.
# Exit code: 0 if nothing failed. Made by tests/gpu.sh.
set -u -o pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 1
results=$here/results
rm -rf "$results" && mkdir -p "$results" || exit 1
paths=$here/lib
for place in "${CUDA_HOME:-/usr/local/cuda}" /usr/local/cuda /usr/local/lib/python3*/*-packages/nvidia/*; do
  for lib in "$place/lib64" "$place/lib"; do [ ! -d "$lib" ] || paths=$paths:$lib; done
done
export LD_LIBRARY_PATH=$paths${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
deadline=$(($(date +%s) + 470))
passed=0 failed=0 skipped=0
parts=''

# tell <status> <part> <seconds> <what>
tell() {
  case $1 in
    pass) passed=$((passed + 1)) ;;
    fail) failed=$((failed + 1)) ;;
    skip) skipped=$((skipped + 1)) ;;
  esac
  printf '%-4s %-40s %5s s  %s\n' "${1^^}" "$2" "$3" "$4" | tee -a "$results/table.txt"
  parts="$parts${parts:+,
}    {\"part\": \"$2\", \"status\": \"$1\", \"seconds\": $3, \"note\": \"${4//\"/\\\"}\"}"
}

# part <name> <most seconds> <command...>: its output goes to results/<name>.log
part() {
  local name=$1 most=$2 started left status
  shift 2
  left=$((deadline - $(date +%s)))
  if [ -n "$why" ]; then tell skip "$name" 0 "$why"; return 1; fi
  if [ "$left" -lt 5 ]; then tell skip "$name" 0 'no time left'; return 1; fi
  started=$(date +%s)
  timeout -k 5 $((most < left ? most : left)) "$@" > "$results/$name.log" 2>&1
  status=$?
  local seconds=$(($(date +%s) - started))
  case $status in
    0) tell pass "$name" "$seconds" "$(grep -c '^\[       OK' "$results/$name.log") cases" ;;
    77) tell skip "$name" "$seconds" "$(tail -n 1 "$results/$name.log")" ;;
    124 | 137) tell fail "$name" "$seconds" "took longer than $most s" ;;
    *) tell fail "$name" "$seconds" "exit code $status: $(grep -m 1 -E 'Failure|FAILED|rror' "$results/$name.log" | tr -d '\\' | cut -c 1-160)" ;;
  esac
  return $status
}

# ranks <n> <command...>: that many processes, rank and host of their own each (NCCL refuses two ranks of
# one host on one device), loopback alone.
ranks() {
  local n=$1 rank status=0 port=$((20000 + RANDOM % 20000)) pids=''
  shift
  for rank in $(seq 0 $((n - 1))); do
    RANK=$rank WORLD_SIZE=$n LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      SHERD_TEST_LAUNCHED=1 "$@" > "$results/rank$rank.tmp" 2>&1 &
    pids="$pids $!"
  done
  for pid in $pids; do wait "$pid" || status=$?; done
  for rank in $(seq 0 $((n - 1))); do sed "s/^/[$rank] /" "$results/rank$rank.tmp"; rm "$results/rank$rank.tmp"; done
  grep -q '\[       OK' "$results"/*.log 2> /dev/null
  return $status
}
one_device_hosts() {  # as ranks, all on device 0, by NCCL over sockets
  local n=$1 rank status=0 port=$((20000 + RANDOM % 20000)) pids=''
  shift
  for rank in $(seq 0 $((n - 1))); do
    RANK=$rank WORLD_SIZE=$n LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
      SHERD_TEST_LAUNCHED=1 SHERD_TEST_DEVICE=0 NCCL_HOSTID=rank$rank NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 \
      NCCL_MNNVL_ENABLE=0 "$@" > "$results/rank$rank.tmp" 2>&1 &
    pids="$pids $!"
  done
  for pid in $pids; do wait "$pid" || status=$?; done
  for rank in $(seq 0 $((n - 1))); do sed "s/^/[$rank] /" "$results/rank$rank.tmp"; rm "$results/rank$rank.tmp"; done
  return $status
}

why=''
devices=$("$here/bin/gpu_probe" 2> "$results/probe.log") || why=$(cat "$results/probe.log")
[ -z "$why" ] || why=${why:-the programs do not start here: $(ldd "$here/bin/gpu_probe" | grep 'not found' | xargs)}
count=$(printf '%s\n' "$devices" | grep -c '^cuda:')
printf '%s\n' "${devices:-no device: $why}" | tee "$results/table.txt"

for program in "$here"/bin/gpu_*_test; do
  case $program in *_parity_test) continue ;; esac
  part "$(basename "$program")" 60 "$program"
done
part parity_gloo_on_one_device 90 "$here/bin/gpu_device_parity_test" --gtest_filter='*Staged*'
part parity_nccl_1 30 env SHERD_TEST_DEVICE=0 "$here/bin/gpu_device_parity_test" --gtest_filter='*Nccl/W1'
part parity_nccl_2_on_one_device 60 one_device_hosts 2 "$here/bin/gpu_device_parity_test" --gtest_filter='*Launched*'
for n in 2 4 8; do
  name=parity_nccl_$n
  if [ -z "$why" ] && [ "$count" -lt $n ]; then
    tell skip $name 0 "$count devices"
  else
    part $name 60 ranks $n "$here/bin/gpu_device_parity_test" --gtest_filter='*Launched*'
  fi
done
part kernels 120 "$here/bin/gpu_bench"
part training_1.5b 90 "$here/bin/llama_step" --device cuda --shape 1.5b --seq 2048 --batch 4 --dtype bf16 \
  --checkpoint --steps 8 --warmup 3 --no-floor
if [ -f "$here/llama_torch.py" ] && python3 -c 'import torch; assert torch.cuda.is_available()' 2> /dev/null; then
  part training_torch_smol 60 python3 "$here/llama_torch.py" --mode single --device cuda --shape smol --seq 2048 --batch 4 --dtype bf16
  part training_smol 60 "$here/bin/llama_step" --device cuda --shape smol --seq 2048 --batch 4 --dtype bf16 \
    --steps 8 --warmup 3 --no-floor
else
  tell skip training_torch_smol 0 'no PyTorch with CUDA'
fi

{
  printf '{\n  "commit": "%s",\n  "date": "%s",\n  "devices": [' "$(cat "$here/commit" 2> /dev/null)" "$(date -u +%F)"
  printf '%s\n' "$devices" | sed -n 's/^cuda:.*/"&"/p' | paste -s -d ,
  printf '],\n  "passed": %d, "failed": %d, "skipped": %d,\n  "parts": [\n%s\n  ],\n  "kernels": [\n' \
    $passed $failed $skipped "$parts"
  grep -h '^{' "$results/kernels.log" 2> /dev/null | sed '$!s/$/,/; s/^/    /'
  printf '  ],\n  "training": [\n'
  grep -h '^{' "$results"/training*.log 2> /dev/null | sed '$!s/$/,/; s/^/    /'
  printf '  ]\n}\n'
} > "$results/results.json"
grep -h '"kernel"' "$results/kernels.log" 2> /dev/null |
  sed 's/[{}"]//g; s/kernel: //; s/, us: / | /; s/, rate: / us | /; s/, unit: / /; s/, share: / | /' >> "$results/table.txt"
grep -h '^{' "$results"/training*.log 2> /dev/null >> "$results/table.txt"
printf '%d passed, %d failed, %d skipped\n' $passed $failed $skipped | tee -a "$results/table.txt"
[ $failed = 0 ]
