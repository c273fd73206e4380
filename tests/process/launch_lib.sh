# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154
# What the launch tests share: verdicts, launchers' command lines, and two hosts made of network
# namespaces. Sourced, with $probe set; makes $work and removes it at the end.
work=$(mktemp -d) || exit 1
export TMPDIR=$work
failed=0
children='' # processes to end with the script
hosts=''    # network namespaces to remove with it
pids=()

cleanup() {
  # shellcheck disable=SC2086
  [ -z "$children" ] || kill -9 $children 2> /dev/null
  local ns
  for ns in $hosts; do ip netns del "$ns" 2> /dev/null; done
  rm -rf "$work"
}
trap cleanup EXIT

pass() { echo "PASS $1"; }
fail() { echo "FAIL $1: $2"; sed 's/^/  | /' "$3" | head -40; failed=1; }
skip() { echo "SKIP $1: $2"; }

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

# start <number> <command...>: in the background, output in $work/rank<number>.
start() {
  local number=$1
  shift
  timeout -s KILL 60 "$@" > "$work/rank$number" 2>&1 &
  pids[number]=$!
  children="$children $!"
}

# finish <numbers...>: waits for what `start` began.
finish() {
  local number
  for number in "$@"; do wait "${pids[number]}"; done 2> /dev/null
}

# make_hosts <addresses of a> <addresses of b> <MTU>: two hosts and a cable between them; addresses
# are as in "ip addr add". Returns 1, with the reason in $reason, where that is not permitted.
make_hosts() {
  local ns side address addresses
  drop_hosts
  ns_a="sherd-a-$$" ns_b="sherd-b-$$"
  reason='network namespaces cannot be made here'
  ip netns add "$ns_a" 2> /dev/null || return 1
  hosts=$ns_a
  # A container may make them and yet not enter them.
  reason='network namespaces cannot be entered here'
  ip netns exec "$ns_a" unshare -m -u true 2> /dev/null || return 1
  reason='there is no cable between network namespaces here'
  ip netns add "$ns_b" && hosts="$ns_a $ns_b"
  ip link add veth-a netns "$ns_a" mtu "$3" type veth peer name veth-b netns "$ns_b" mtu "$3" || return 1
  for side in a b; do
    ns="sherd-$side-$$"
    ip -n "$ns" link set lo up && ip -n "$ns" link set "veth-$side" up
    addresses=$1
    [ $side = a ] || addresses=$2
    for address in $addresses; do
      # No wait for duplicates of an IPv6 address: there is nobody else on the cable.
      case $address in *:*) address="$address nodad" ;; esac
      reason="a host here cannot have the address $address"
      # shellcheck disable=SC2086
      ip -n "$ns" addr add $address dev "veth-$side" 2> /dev/null || return 1
    done
    printf '127.0.0.1 localhost\n::1 localhost\n' > "$work/hosts-$side"
    reason='a host cannot have a name and an /etc/hosts of its own here'
    "$work/on" "$side" true 2> /dev/null || return 1
  done
}

drop_hosts() {
  local ns
  for ns in $hosts; do ip netns del "$ns" 2> /dev/null; done
  hosts=''
}

# $work/on <a|b> <command...>: on that host, which is called hosta or hostb and reads
# $work/hosts-<a|b> as its /etc/hosts. A script, since launchers call it too.
cat > "$work/on" << END
#!/usr/bin/env bash
side=\$1
shift
exec ip netns exec "sherd-\$side-$$" unshare -m -u sh -c \\
  'hostname "host\$0" && mount --bind "$work/hosts-\$0" /etc/hosts && exec "\$@"' "\$side" "\$@"
END
# As mpirun calls ssh: <hosta|hostb> <a line for the shell>.
cat > "$work/agent" << END
#!/usr/bin/env bash
side=\${1#host}
shift
exec "$work/on" "\$side" sh -c "\$*"
END
chmod +x "$work/on" "$work/agent"
