#!/usr/bin/env bash
# Starts launch_probe as real launchers do, and kills ranks: launch_test.sh <launch_probe>.
# Prints one line PASS, FAIL or SKIP per check; ends with 0 if none failed.
set -u
probe=$(readlink -f "${1:?usage: launch_test.sh <launch_probe>}")
work=$(mktemp -d) || exit 1
export TMPDIR=$work
failed=0
children=''
cleanup() {
  # shellcheck disable=SC2086
  [ -z "$children" ] || kill -9 $children 2> /dev/null
  rm -rf "$work"
}
trap cleanup EXIT

pass() { echo "PASS $1"; }
fail() { echo "FAIL $1: $2"; sed 's/^/  | /' "$3" | head -40; failed=1; }
skip() { echo "SKIP $1: $2"; }

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

free_port() {
  local port
  for ((port = 20000 + RANDOM % 10000; ; ++port)); do
    (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null || break
  done
  echo "$port"
}

mpi=(timeout -k 5 60 mpirun --oversubscribe --bind-to none)
[ "$(id -u)" != 0 ] || mpi+=(--allow-run-as-root)
torch=(timeout -k 5 90 torchrun --no_python --monitor_interval 0.1)
# Debian's torchrun fails without a map of outputs; this one concerns no rank.
torch+=(-r 9:1 -t 9:1)

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
    MASTER_PORT=$port timeout -s KILL 60 "$probe" "$@" > "$work/rank$rank" 2>&1 &
  pids[rank]=$!
  children="$children $!"
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

# Two hosts: two network namespaces with a cable between them.
check_hosts() {
  local what='two hosts' a="sherd-a-$$" b="sherd-b-$$" r ns
  if ! ip netns add "$a" 2> /dev/null; then skip "$what" 'network namespaces cannot be made here'; return; fi
  # A container may make them and yet not enter them.
  if ! ip netns exec "$a" true 2> /dev/null; then
    ip netns del "$a"
    skip "$what" 'network namespaces cannot be entered here'
    return
  fi
  ip netns add "$b" && ip link add veth-a netns "$a" type veth peer name veth-b netns "$b" &&
    ip -n "$a" addr add 10.77.0.1/24 dev veth-a && ip -n "$b" addr add 10.77.0.2/24 dev veth-b &&
    ip -n "$a" link set veth-a up && ip -n "$b" link set veth-b up &&
    ip -n "$a" link set lo up && ip -n "$b" link set lo up
  for r in 0 1 2 3; do
    ns=$a
    [ $r -lt 2 ] || ns=$b
    RANK=$r WORLD_SIZE=4 LOCAL_RANK=$((r % 2)) LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.77.0.1 MASTER_PORT=29400 \
      timeout -s KILL 60 ip netns exec "$ns" "$probe" sum > "$work/host$r" 2>&1 &
    pids[r]=$!
    children="$children $!"
  done
  for r in 0 1 2 3; do wait "${pids[r]}"; done
  ip netns del "$a"
  ip netns del "$b"
  for r in 0 1 2 3; do
    grep -q "^rank $r of 4 (local $((r % 2)) of 2): sum 6$" "$work/host$r" || { fail "$what" "rank $r did not print its sum" "$work/host$r"; return; }
  done
  pass "$what"
}

pids=()
check_alone
check_mpirun
check_torchrun
check_kill
check_exception
check_stopped
check_missing
check_hosts
exit $failed
