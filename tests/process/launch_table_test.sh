#!/usr/bin/env bash
# The launch table: how a job starts, and what comes of it: launch_table_test.sh <launch_probe>.
# Prints one line PASS, FAIL or SKIP per case, and at the end the table "case | outcome", where an
# outcome is "connected" or the error's text.
set -u
probe=$(readlink -f "${1:?usage: launch_table_test.sh <launch_probe>}")
# shellcheck source=tests/process/launch_lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/launch_lib.sh"
table=''

row() { pass "$1"; table+="$1 | $2"$'\n'; }

# connected <case> <W> <outputs...>: every rank once, with the right sum.
connected() {
  local what=$1 size=$2 r
  local sum=$((size * (size - 1) / 2))
  shift 2
  (cd "$work" && cat "$@") > "$work/all"
  for ((r = 0; r < size; ++r)); do
    if [ "$(grep -c "rank $r of $size (local [0-9]* of [0-9]*): sum $sum$" "$work/all")" != 1 ]; then
      fail "$what" "rank $r of $size did not print the sum $sum" "$work/all"
      return 1
    fi
  done
  row "$what" connected
}

# refused <case> <text> <outputs...>: no rank connects, and each says the text.
refused() {
  local what=$1 text=$2 name
  shift 2
  for name in "$@"; do
    if grep -q ': sum ' "$work/$name"; then fail "$what" "it connected" "$work/$name"; return; fi
    if ! grep -q -- "$text" "$work/$name"; then fail "$what" "it does not say '$text'" "$work/$name"; return; fi
  done
  row "$what" "$(sed -n 's/.*no world: //p' "$work/$1" | head -1)"
}

# warned <case> <text> <output>: said once, as a warning.
warned() {
  if [ "$(grep -c "warning: .*$2" "$work/$3")" = 1 ]; then
    row "$1" "warning: $(sed -n "s/.*warning: \(.*$2.*\)/\1/p" "$work/$3" | head -1)"
  else
    fail "$1" "it does not warn of '$2'" "$work/$3"
  fi
}

# rank <number> <W> <host> <mode> [VARIABLE=value...]: one rank of two on each host, started by hand.
rank() {
  local r=$1 size=$2 host=$3 mode=$4
  shift 4
  start "$r" "$work/on" "$host" env RANK="$r" WORLD_SIZE="$size" LOCAL_RANK=$((r % 2)) LOCAL_WORLD_SIZE=2 \
    MASTER_PORT=29400 SHERD_SECRET=table "$@" "$probe" "$mode"
}

# Of four ranks, two are on each host.
host_of() { if [ "$1" -lt 2 ]; then echo a; else echo b; fi; }

# four <case> <mode> [VARIABLE=value...]: two ranks on each host.
four() {
  local what=$1 mode=$2 r
  shift 2
  for r in 0 1 2 3; do rank $r 4 "$(host_of $r)" "$mode" "$@"; done
  finish 0 1 2 3
  connected "$what" 4 rank0 rank1 rank2 rank3
}

# The addresses at which somebody on host a listens on the master's port, waiting for that.
listening() {
  local tries
  for ((tries = 0; tries < 60; ++tries)); do
    ip netns exec "$ns_a" ss -Htln 'sport = 29400' | grep -q . && break
    sleep 0.05
  done
  sleep 0.2
  ip netns exec "$ns_a" ss -Htln 'sport = 29400' | awk '{print $4}' | sort | xargs
}

hosts_with_number_and_name() {
  four 'two hosts, MASTER_ADDR an IPv4 number' sum MASTER_ADDR=10.77.0.1
  echo '10.77.0.1 hosta' | tee -a "$work/hosts-a" >> "$work/hosts-b"
  four 'two hosts, MASTER_ADDR a name' sum MASTER_ADDR=hosta
  # Debian's way: a host finds its own name at 127.0.1.1.
  printf '127.0.0.1 localhost\n127.0.1.1 hosta\n' > "$work/hosts-a"
  four 'two hosts, where the name is 127.0.1.1 on its own host' sum MASTER_ADDR=hosta
  rank 0 4 a meet MASTER_ADDR=hosta
  local what='  ... where rank 0 listens on 127.0.1.1 and the one interface' found
  found=$(listening)
  if [ "$found" = '10.77.0.1:29400 127.0.1.1:29400' ]; then row "$what" "$found"; else fail "$what" "$found" "$work/rank0"; fi
  finish 0
  # A name with two addresses; what is sent to the first, which is nearer to 10.77.0.2, vanishes.
  printf '10.77.0.3 hosta\n10.77.0.1 hosta\n' > "$work/hosts-b"
  ip -n "$ns_b" neigh add 10.77.0.3 lladdr 02:00:00:00:00:99 dev veth-b nud permanent
  four 'two hosts, where the name has a dead address as well' sum MASTER_ADDR=hosta
}

hosts_with_out_of_step() {
  local r
  for r in 0 1 2; do rank $r 4 "$(host_of $r)" sum MASTER_ADDR=10.77.0.1; done
  sleep 3
  rank 3 4 b sum MASTER_ADDR=10.77.0.1
  finish 0 1 2 3
  connected 'two hosts, a peer that comes 3 s late' 4 rank0 rank1 rank2 rank3
  for r in 1 2 3; do rank $r 4 "$(host_of $r)" sum MASTER_ADDR=10.77.0.1; done
  sleep 3
  rank 0 4 a sum MASTER_ADDR=10.77.0.1
  finish 0 1 2 3
  connected 'two hosts, rank 0 comes 3 s late' 4 rank0 rank1 rank2 rank3

  local server='import socket,time,sys
s=socket.socket(); s.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1)
s.bind(("10.77.0.1",29400)); s.listen(); time.sleep(float(sys.argv[1]))'
  start 9 "$work/on" a python3 -c "$server" 20
  listening > /dev/null
  rank 0 2 a meet MASTER_ADDR=10.77.0.1 LOCAL_WORLD_SIZE=1
  rank 1 2 b meet MASTER_ADDR=10.77.0.1 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0
  finish 0 1
  refused 'MASTER_PORT is taken: rank 0' 'cannot listen on 10.77.0.1:29400: Address already in use' rank0
  refused 'MASTER_PORT is taken: the others' 'rank 0 of 2 did not arrive within 3s: no store answered at 10.77.0.1:29400' rank1
  kill "${pids[9]}" 2> /dev/null
  finish 9
  start 9 "$work/on" a python3 -c "$server" 4
  listening > /dev/null
  four 'MASTER_PORT is taken for 3 s more' sum MASTER_ADDR=10.77.0.1
  finish 9

  rank 0 2 a meet MASTER_ADDR=10.77.0.1 LOCAL_WORLD_SIZE=1
  rank 1 2 b meet MASTER_ADDR=10.77.0.1 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 SHERD_SECRET=other
  finish 0 1
  refused 'another SHERD_SECRET: rank 0' 'rank 1 of 2 did not arrive within 3s' rank0
  refused 'another SHERD_SECRET: the stranger' 'belongs to another job: it knows another secret' rank1
  four 'no SHERD_SECRET' sum MASTER_ADDR=10.77.0.1 SHERD_SECRET= &&
    warned '  ... which rank 0 warns of' 'set SHERD_SECRET on all ranks' rank0
  rank 0 4 a meet
  finish 0
  refused 'several hosts and no master' 'MASTER_PORT is .29400., but MASTER_ADDR is not set' rank0
  rank 0 4 a meet MASTER_PORT=
  finish 0
  refused 'several hosts, neither master nor port' 'set MASTER_ADDR and MASTER_PORT on all of them' rank0
}

# As where one network is for talking and one for work.
hosts_with_two_networks() {
  local found what='two networks'
  printf '127.0.0.1 localhost\n127.0.1.1 hosta\n' > "$work/hosts-a"
  printf '127.0.0.1 localhost\n10.77.0.1 hosta\n' > "$work/hosts-b"
  four "$what, where the name is 127.0.1.1 on its own host" sum MASTER_ADDR=hosta
  warned '  ... where rank 0 listens on both, and warns' '10.77.0.1, 10.88.0.1; SHERD_ADDRESS names the one to use' rank0
  rank 0 4 a meet MASTER_ADDR=hosta SHERD_ADDRESS=10.88.0.1
  found=$(listening)
  finish 0
  if [ "$found" = '10.88.0.1:29400 127.0.1.1:29400' ]; then
    row "  ... unless SHERD_ADDRESS says where" "$found"
  else
    fail "$what: SHERD_ADDRESS" "rank 0 listens on $found" "$work/rank0"
  fi
  rank 0 2 a loop MASTER_ADDR=10.77.0.1 LOCAL_WORLD_SIZE=1 SHERD_ADDRESS=10.88.0.1
  rank 1 2 b loop MASTER_ADDR=10.77.0.1 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 SHERD_ADDRESS=10.88.0.2
  local tries
  for ((tries = 0; tries < 200; ++tries)); do
    grep -q 'runs as process' "$work/rank1" && break
    sleep 0.05
  done
  # Gloo has one connection for each pair of ranks.
  found=$(ip netns exec "$ns_a" ss -Htn state established | awk '{print $3}' | sed 's/:.*//' | sort | uniq -c | xargs)
  pkill -9 -P "${pids[0]}"
  pkill -9 -P "${pids[1]}"
  finish 0 1
  case $found in
    *' 10.88.0.1') row "$what, met in one, SHERD_ADDRESS in the other" 'connected' ;;
    *) fail "$what: SHERD_ADDRESS" "connections at $found" "$work/rank0" ;;
  esac
}

# A launcher's agents on two hosts, without ssh: a script that enters the host.
hosts_with_launchers() {
  printf '127.0.0.1 localhost\n10.77.0.1 hosta\n10.77.0.2 hostb\n' | tee "$work/hosts-a" > "$work/hosts-b"
  if command -v mpirun > /dev/null; then
    local list=(--host hosta:2,hostb:2 --mca plm_rsh_agent "$work/agent" --mca oob_tcp_if_include 10.77.0.0/24)
    start 0 "$work/on" a "${mpi[@]}" "${list[@]}" -x MASTER_ADDR=hosta -x MASTER_PORT=29400 -x SHERD_SECRET=mpi "$probe" sum
    finish 0
    connected 'mpirun with a list of two hosts' 4 rank0
    start 0 "$work/on" a "${mpi[@]}" "${list[@]}" "$probe" meet
    finish 0
    refused 'mpirun with a list of two hosts, no master' 'started by OpenMPI, 2 of them on this host, do not know where to meet' rank0
  else
    skip 'mpirun with a list of two hosts' 'mpirun is not installed'
  fi
  if ! command -v torchrun > /dev/null; then skip 'two torchrun agents' 'torchrun is not installed'; return; fi
  local r
  for r in 0 1; do
    start $r "$work/on" "$(host_of $((2 * r)))" "${torch[@]}" --nnodes 2 --node_rank $r --nproc_per_node 2 \
      --master_addr 10.77.0.1 --master_port 29500 "$probe" sum
  done
  finish 0 1
  connected 'two torchrun agents, static' 4 rank0 rank1
  for r in 0 1; do
    start $r "$work/on" "$(host_of $((2 * r)))" env SHERD_SECRET=c10d "${torch[@]}" --nnodes 2 --nproc_per_node 2 \
      --rdzv_backend c10d --rdzv_endpoint hosta:29501 --rdzv_id table "$probe" sum
  done
  finish 0 1
  connected 'two torchrun agents, c10d, rank 0 serves the master port' 4 rank0 rank1
}

hosts_with_slow_link() {
  if ! ip netns exec "$ns_a" tc qdisc add dev veth-a root tbf rate 20mbit burst 64kb latency 200ms 2> /dev/null; then
    skip 'two hosts, MTU 1280, 20 Mbit/s' 'links cannot be slowed here'
    return
  fi
  four 'two hosts, MTU 1280, 20 Mbit/s' big MASTER_ADDR=10.77.0.1 || return
  # Each rank here sends a quarter of the 4 MiB to each rank there, to be added up, and its own
  # quarter of the sum.
  local sent what='  ... over which the numbers went'
  sent=$(ip netns exec "$ns_a" cat /sys/class/net/veth-a/statistics/tx_bytes)
  if [ "$sent" -gt $((8 << 20)) ]; then row "$what" 'more than 8 MiB sent'; else fail "$what" "$sent bytes" /dev/null; fi
}

hosts_with_ipv6() {
  four 'IPv6 only, MASTER_ADDR a number' sum MASTER_ADDR=fd77::1
  four 'IPv6 only, MASTER_ADDR a number in brackets' sum MASTER_ADDR='[fd77::1]'
  printf '::1 localhost\nfd77::1 hosta\n' | tee "$work/hosts-a" > "$work/hosts-b"
  four 'IPv6 only, MASTER_ADDR a name' sum MASTER_ADDR=hosta
  local r
  ip -n "$ns_a" addr del 127.0.0.1/8 dev lo 2> /dev/null
  for r in 0 1; do
    start $r "$work/on" a env OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=$r \
      OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE=six "$probe" sum
  done
  finish 0 1
  connected 'one host without 127.0.0.1' 2 rank0 rank1
}

check_hosts() {
  local what
  for what in number_and_name out_of_step two_networks launchers slow_link ipv6; do
    local a=10.77.0.1/24 b=10.77.0.2/24 mtu=1500
    [ $what != ipv6 ] || { a=fd77::1/64; b=fd77::2/64; }
    [ $what != slow_link ] || mtu=1280
    [ $what != two_networks ] || { a="$a 10.88.0.1/24"; b="$b 10.88.0.2/24"; }
    if ! make_hosts "$a" "$b" "$mtu"; then skip "two hosts: $what" "$reason"; continue; fi
    "hosts_with_$what"
  done
  drop_hosts
}

# one <number> <mode> <VARIABLE=value...>: a rank on this host.
one() {
  local number=$1 mode=$2
  shift 2
  start "$number" env "$@" "$probe" "$mode"
}

# ompi <rank> <mode> <job>: one of two ranks, as mpirun would start it, that meet through a file.
ompi() {
  one "$1" "$2" OMPI_COMM_WORLD_RANK="$1" OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK="$1" \
    OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE="$3"
}

check_leftovers() {
  local what='leftover files of an earlier job'
  ompi 0 sum leftover
  local file tries
  file="$work/sherd-$(id -u)/leftover"
  for ((tries = 0; tries < 100; ++tries)); do [ -e "$file" ] && break; sleep 0.05; done
  pkill -9 -P "${pids[0]}"
  finish 0
  [ -e "$file" ] || { fail "$what" 'the earlier job left no file' "$work/rank0"; return; }
  ompi 1 sum leftover
  sleep 0.5
  ompi 0 sum leftover
  finish 0 1
  connected "$what" 2 rank0 rank1
  ln -s "$work/nowhere" "$work/sherd-$(id -u)/link"
  ompi 0 meet link
  ompi 1 meet link
  finish 0 1
  refused 'a link where the meeting file should be' 'is not a file of this user: remove it' rank0 rank1
}

check_counts() {
  local what='a launcher says 4, the library would see 1'
  if command -v mpirun > /dev/null; then
    "${mpi[@]}" -np 4 env -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE -u PMIX_RANK "$probe" sum > "$work/mpi" 2>&1
    refused "$what: variables lost on the way" 'OMPI_COMM_WORLD_LOCAL_SIZE is 4, but this process knows of itself alone' mpi
    "${mpi[@]}" -np 4 -x RANK=0 -x WORLD_SIZE=1 "$probe" sum > "$work/mpi" 2>&1
    refused "$what: RANK and WORLD_SIZE left over in the shell" 'RANK and WORLD_SIZE are 0 and 1, but OMPI_COMM_WORLD_RANK' mpi
  else
    skip "$what" 'mpirun is not installed'
  fi
  one 0 sum FLUX_JOB_SIZE=4
  one 1 sum SLURM_PROCID=0 SLURM_NTASKS=4
  finish 0 1
  refused "$what: a launcher that is not known" 'FLUX_JOB_SIZE is 4' rank0
  connected 'a batch script without srun' 1 rank1 && warned '  ... which is warned of' 'SLURM_NTASKS is 4' rank1
}

check_variables() {
  local r
  for r in 0 1; do
    one $r sum SLURM_PROCID=$r SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=$r SLURM_NODEID=0 \
      SLURM_STEP_TASKS_PER_NODE=2 SLURM_JOB_ID=99 SLURM_STEP_ID=0
  done
  finish 0 1
  connected "srun's variables, one host" 2 rank0 rank1
  for r in 0 1; do
    one $r sum PMI_RANK=$r PMI_SIZE=2 MPI_LOCALRANKID=$r MPI_LOCALNRANKS=2 MASTER_ADDR=localhost MASTER_PORT="$port"
  done
  finish 0 1
  connected "MPICH's variables, one host, MASTER_ADDR localhost" 2 rank0 rank1
  for r in 0 1; do one $r sum RANK=$r WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT="$port"; done
  finish 0 1
  connected 'RANK, WORLD_SIZE and MASTER_ADDR=localhost alone' 2 rank0 rank1
  one 0 meet RANK=0 WORLD_SIZE=2
  finish 0
  refused 'RANK and WORLD_SIZE alone' 'on hosts unknown, do not know where to meet: set MASTER_ADDR and MASTER_PORT' rank0
  one 0 meet RANK=0 WORLD_SIZE=2 MASTER_ADDR=no-such-host.invalid MASTER_PORT="$port"
  one 1 meet RANK=1 WORLD_SIZE=2 MASTER_ADDR=no-such-host.invalid MASTER_PORT="$port"
  finish 0 1
  refused 'MASTER_ADDR is a name nobody knows' "cannot resolve host 'no-such-host.invalid'" rank1
}

check_threads() {
  start 0 taskset -c "$(taskset -pc $$ | sed 's/.*[ ,-]//')" "$probe" threads 2
  finish 0
  connected 'more threads than cores bound' 1 rank0 &&
    warned '  ... which is warned of' 'computes with 2 threads, but may use 1 CPUs' rank0
}

port=$(free_port)
check_leftovers
check_counts
check_variables
check_threads
check_hosts
echo "case | outcome"
printf '%s' "$table"
exit $failed
