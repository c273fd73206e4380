#!/usr/bin/env bash
# Starts launch_probe as real launchers do, and kills ranks: launch_test.sh <launch_probe>.
# Prints one line PASS, FAIL or SKIP per check; ends with 0 if none failed.
set -u
probe=$(readlink -f "${1:?usage: launch_test.sh <launch_probe>}")
# shellcheck source=tests/process/launch_lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/launch_lib.sh"

# expect_ranks <what> <W> <output>: every rank once, with the right sum.
expect_ranks() {
  local sum=$(($2 * ($2 - 1) / 2)) r
  for ((r = 0; r < $2; ++r)); do
    if [ "$(grep -c "^\(\[[^]]*\]:\)\?rank $r of $2 (local $r of $2): sum $sum$" "$3")" != 1 ]; then
      fail "$1" "rank $r of $2 did not print the sum $sum" "$3"
      return
    fi
  done
  pass "$1"
}

check_alone() {
  timeout 30 "$probe" sum > "$work/alone" 2>&1
  expect_ranks 'without a launcher there is one rank' 1 "$work/alone"
}

check_mpirun() {
  local w
  for w in 2 3; do
    command -v mpirun > /dev/null || { skip "mpirun -np $w" 'mpirun is not installed'; continue; }
    "${mpi[@]}" -np "$w" "$probe" sum > "$work/mpi" 2>&1
    expect_ranks "mpirun -np $w" "$w" "$work/mpi"
  done
  local left
  left=$(find "$work" -path '*sherd-*' -type f)
  if [ -z "$left" ]; then pass 'no meeting file is left behind'; else fail 'no meeting file is left behind' "$left" /dev/null; fi
}

check_torchrun() {
  command -v torchrun > /dev/null || { skip 'torchrun' 'torchrun is not installed'; return; }
  "${torch[@]}" --nproc_per_node 2 --master_port "$(free_port)" "$probe" sum > "$work/torch" 2>&1
  expect_ranks 'torchrun with the agent store' 2 "$work/torch"
  "${torch[@]}" --standalone --nproc_per_node 2 "$probe" sum > "$work/torch" 2>&1
  expect_ranks 'torchrun --standalone, rank 0 serves the master port' 2 "$work/torch"
  "${torch[@]}" --max_restarts 1 --nproc_per_node 3 --master_port "$(free_port)" "$probe" retry > "$work/torch" 2>&1
  expect_ranks 'torchrun restarts after a failure, with the old keys still there' 3 "$work/torch"
}

# by_hand <rank> <W> <arguments...>: one rank in the background, output in $work/rank<rank>.
by_hand() {
  local rank=$1 size=$2
  shift 2
  RANK=$rank WORLD_SIZE=$size LOCAL_RANK=$rank LOCAL_WORLD_SIZE=$size MASTER_ADDR=127.0.0.1 \
    MASTER_PORT=$port start "$rank" "$probe" "$@"
}

running_process() {
  local tries
  for ((tries = 0; tries < 200; ++tries)); do
    sed -n "s/^rank $1 runs as process //p" "$work/rank$1" | grep . && return
    sleep 0.05
  done
}

# survivors <what> <text> <limit ms> <ranks...>: they end with 3 in time, with the text in their error.
survivors() {
  local what=$1 text=$2 limit=$3 begin now r rc
  shift 3
  begin=$(date +%s%3N)
  for r in "$@"; do
    wait "${pids[r]}"
    rc=$?
    now=$(date +%s%3N)
    if [ $rc != 3 ]; then fail "$what" "rank $r ended with $rc, not 3" "$work/rank$r"; return; fi
    if [ $((now - begin)) -gt "$limit" ]; then fail "$what" "rank $r took $((now - begin)) ms" "$work/rank$r"; return; fi
    if ! grep -q "$text" "$work/rank$r"; then fail "$what" "rank $r does not say '$text'" "$work/rank$r"; return; fi
  done
  pass "$what"
}

check_kill() {
  local victim r pid others
  for victim in 1 0; do
    port=$(free_port)
    others=''
    for r in 0 1 2; do by_hand $r 3 loop; [ $r = $victim ] || others="$others $r"; done
    pid=$(running_process $victim)
    # All of them have met: one that still connects would wait as long as a meeting may take.
    for r in $others; do running_process "$r" > /dev/null; done
    kill -9 "$pid"
    # shellcheck disable=SC2086
    survivors "kill -9 of rank $victim ends the others, naming it" "lost the connection to rank $victim" 5000 $others
  done
}

check_exception() {
  local r
  port=$(free_port)
  for r in 0 1 2; do by_hand $r 3 throw 0; done
  survivors 'an exception on rank 0 ends the others with its name' 'rank 0 aborted: ' 20000 1 2
}

check_stopped() {
  local r pid
  port=$(free_port)
  for r in 0 1 2; do by_hand $r 3 stop 9; done
  pid=$(running_process 2)
  kill -STOP "$pid"
  survivors 'a stopped rank is named when the deadline of 2 s has passed' 'rank 2' 6000 0 1
  kill -9 "$pid"
}

check_missing() {
  port=$(free_port)
  by_hand 0 3 meet
  by_hand 1 3 meet
  local r text='rank 2 of 3 did not arrive within 3s' what='a rank that never comes is named'
  for r in 0 1; do
    wait "${pids[r]}"
    if [ $? != 2 ] || ! grep -q "$text" "$work/rank$r"; then fail "$what" "rank $r does not say '$text'" "$work/rank$r"; return; fi
  done
  pass "$what"
}

check_alone
check_mpirun
check_torchrun
check_kill
check_exception
check_stopped
check_missing
exit $failed
