#!/usr/bin/env bash
# The Llama step beside PyTorch's, in one run:
#   llama_side_by_side.sh <llama_step> <llama_torch.py> [<shape> ...]
#
# For each shape (tiny and mid if none is named), one and two ranks, checkpointing off and on, f32, and two ranks
# with checkpointing in bf16: one run of each program, one thread a rank. Two ranks of PyTorch are DDP under
# torchrun, in bf16 with autocast; ours are sharded under mpirun, in bf16 with .precision = kBf16. Prints every
# JSON line, then a table. PyTorch runs fewer steps, since it is slower. Growth is the peak of resident memory
# less what a process has with its libraries loaded and no model. Exits with 1 if two sharded, checkpointed
# ranks reach less than 1.5 times PyTorch's tokens/s. QUICK=1 runs those ranks only.
set -u -o pipefail
usage='usage: llama_side_by_side.sh <llama_step> <llama_torch.py> [<shape> ...]'
ours=$(readlink -f "${1:?$usage}")
theirs=$(readlink -f "${2:?$usage}")
shift 2
[ $# -gt 0 ] || set -- tiny mid
python=${PYTHON:-/usr/bin/python3}
mpi=(mpirun --oversubscribe --bind-to none)
[ "$(id -u)" != 0 ] || mpi+=(--allow-run-as-root)
# Debian's torchrun fails without a map of outputs; this one concerns no rank.
torchrun=(torchrun --no_python --nproc_per_node 2 --monitor_interval 0.1 -r 9:1 -t 9:1)
lines=$(mktemp) || exit 1
trap 'rm -f "$lines"' EXIT

# What PyTorch takes before there is a model.
empty=$("$python" -c 'import resource, torch, torch.distributed, torch.utils.checkpoint
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)') || exit 1

run() {  # shape, ranks, dtype, "--checkpoint" or nothing
  local launch=() mode=(--mode single) launch_torch=("$python")
  if [ "$2" = 2 ]; then
    launch=("${mpi[@]}" -np 2)
    mode=(--mode ddp)
    launch_torch=("${torchrun[@]}" "$python")
  fi
  # shellcheck disable=SC2086
  "${launch[@]}" "$ours" --shape "$1" --dtype "$3" --steps "${STEPS:-10}" $4 | grep '^{' | tee -a "$lines"
  # shellcheck disable=SC2086
  "${launch_torch[@]}" "$theirs" --shape "$1" --dtype "$3" --steps 3 --warmup 1 "${mode[@]}" $4 \
    2> /dev/null | grep '^{' | tee -a "$lines"
}

for shape in "$@"; do
  if [ -z "${QUICK:-}" ]; then
    run "$shape" 1 f32 ''
    run "$shape" 1 f32 --checkpoint
    run "$shape" 2 f32 ''
  fi
  run "$shape" 2 f32 --checkpoint
  run "$shape" 2 bf16 --checkpoint
done

python3 - "$lines" "$empty" << 'END'
import json, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
table = {}
for row in rows:
    key = row['shape'], row['world'], row['dtype'], bool(row['checkpoint'])
    table.setdefault(key, {})['torch' if 'torch' in row else 'sherd'] = row
print(f"\n{'shape':6}{'ranks':>6}{'dtype':>6}{'checkpoint':>12}{'PyTorch tok/s':>15}{'Sherd tok/s':>13}{'ratio':>7}"
      f"{'of matmul floor':>17}{'PyTorch grows MiB':>19}{'Sherd grows MiB':>17}")
slow = False
for (shape, world, dtype, checkpoint), pair in sorted(table.items()):
    name = f"{shape:6}{world:>6}{dtype:>6}{'on' if checkpoint else 'off':>12}"
    if len(pair) < 2:
        print(f'{name}  one side is missing')
        slow = True
        continue
    torch, sherd = pair['torch'], pair['sherd']
    ratio = sherd['tokens_per_s'] / torch['tokens_per_s']
    slow |= world == 2 and checkpoint and ratio < 1.5
    print(f"{name}{torch['tokens_per_s']:>15.0f}{sherd['tokens_per_s']:>13.0f}{ratio:>7.1f}"
          f"{sherd['matmul_floor_share']:>17.2f}{torch['peak_rss_mib'] - int(sys.argv[2]):>19}{sherd['grown_rss_mib']:>17}")
sys.exit(slow)
END
