#!/usr/bin/env bash
# From a fresh checkout to a trained language model and its report, in at most ten minutes on two cores.
#
#   examples/quickstart.sh                 two ranks, about three minutes of training
#   examples/quickstart.sh --no-install    refuses, naming them, when packages are missing
#   examples/quickstart.sh --ranks 3       another number of ranks
#   examples/quickstart.sh --out DIR       where metrics and report go; must hold no run yet
#   examples/quickstart.sh -- --steps 50   what follows -- is passed on to the program
#
# Builds in build-quickstart/ of the repository, or in ${SHERD_BUILD_DIR}. Needs root or sudo only if packages
# are missing. The exit code is 0 if the model's validation loss is below that of a byte bigram.
set -eu -o pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
# shellcheck source=runtime/cmake/packages.sh
. runtime/cmake/packages.sh

usage() { sed -n '2,/^set /s/^# \{0,1\}//p' examples/quickstart.sh; }
fail() { echo "quickstart: $*" >&2; exit 1; }
install=1 ranks=2 out=''
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) install=0 ;;
    --ranks) ranks=${2:?--ranks needs a number}; shift ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    -h | --help) usage; exit 0 ;;
    --) shift; break ;;
    *) echo "unknown option: $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
case $ranks in
  '' | *[!0-9]* | 0) fail "--ranks takes a number of at least 1, not '$ranks'" ;;
esac
build=${SHERD_BUILD_DIR:-$root/build-quickstart}
began=$SECONDS
if [ -z "$out" ]; then
  number=1
  while [ -e "$root/out-quickstart/$number" ]; do number=$((number + 1)); done
  out=$root/out-quickstart/$number
fi
if [ -e "$out/metrics.jsonl" ] || [ -e "$out/report.html" ]; then
  fail "$out already holds a run; name another folder with --out"
fi

echo "== packages: $(sherd_packages build run | xargs)"
if [ $install = 1 ]; then
  sherd_install_packages build run || fail 'the packages could not be installed'
else
  missing=$(sherd_missing_packages build run | xargs)
  [ -z "$missing" ] || fail "missing packages: $missing"
fi

cuda=OFF
if command -v nvidia-smi > /dev/null 2>&1 && nvidia-smi -L 2> /dev/null | grep -q GPU; then cuda=AUTO; fi
echo "== build in $build (CUDA $cuda)"
mkdir -p "$build"
cmake --no-warn-unused-cli -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DSHERD_BUILD_TESTS=OFF \
  -DSHERD_BUILD_EXAMPLES=ON -DSHERD_WITH_CUDA=$cuda > "$build/configure.log" \
  || { cat "$build/configure.log"; fail 'the configuration failed'; }
cmake --build "$build" --target sherd_train_llm

echo '== text: the King James Bible, from the package bible-kjv'
text=$build/kjv.txt
PATH=$PATH:/usr/games bible -f Gen1:1-Rev22:21 > "$text"
verses=$(wc -l < "$text")
[ "$verses" = 31102 ] || fail "$text has $verses verses instead of 31102"

launch=(mpirun -n "$ranks")
if mpirun --version 2> /dev/null | grep -qi 'open mpi\|open-mpi\|openrte'; then
  launch+=(--oversubscribe --bind-to none)
  if [ "$(id -u)" = 0 ]; then launch+=(--allow-run-as-root); fi
fi
echo "== train on $ranks ranks ($((SECONDS - began)) s so far)"
log=$build/train.log
"${launch[@]}" "$build/examples/sherd_train_llm" --data "$text" --out "$out" "$@" < /dev/null | tee "$log"

# The program's last lines, which the screen has by now:
#   validation loss 1.4123 nats per byte
#   byte bigram     2.4054 nats per byte, fitted on the same text
#   report          .../report.html
model=$(awk '/^validation loss / { value = $3 } END { print value }' "$log")
bigram=$(awk '/^byte bigram / { value = $3 } END { print value }' "$log")
echo "took            $((SECONDS - began)) s"
awk -v model="$model" -v bigram="$bigram" 'BEGIN { exit !(model + 0 > 0 && model + 0 < bigram + 0) }' \
  || fail 'the model does not beat the bigram'
