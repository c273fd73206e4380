#!/usr/bin/env bash
# The Llama step beside PyTorch's, in one run:
#   llama_side_by_side.sh <llama_step> <llama_torch.py> [<shape> ...]
#
# For each shape (tiny and mid if none is named), one and two ranks, checkpointing off and on: one run of each
# program, one thread a rank, f32; two ranks of PyTorch are DDP under torchrun, ours are sharded under mpirun.
# Prints every JSON line, then a table. PyTorch runs fewer steps, since it is slower.
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

for shape in "$@"; do
  for ranks in 1 2; do
    for checkpoint in '' --checkpoint; do
      launch=()
      mode=(--mode single)
      launch_torch=("$python")
      if [ "$ranks" = 2 ]; then
        launch=("${mpi[@]}" -np 2)
        mode=(--mode ddp)
        launch_torch=("${torchrun[@]}" "$python")
      fi
      # shellcheck disable=SC2086
      "${launch[@]}" "$ours" --shape "$shape" --steps 10 $checkpoint | grep '^{' | tee -a "$lines"
      # shellcheck disable=SC2086
      "${launch_torch[@]}" "$theirs" --shape "$shape" --steps 3 --warmup 1 "${mode[@]}" $checkpoint \
        2> /dev/null | grep '^{' | tee -a "$lines"
    done
  done
done

python3 - "$lines" << 'END'
import json, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
table = {}
for row in rows:
    key = row['shape'], row['world'], bool(row['checkpoint'])
    table.setdefault(key, {})['torch' if 'torch' in row else 'sherd'] = row
print(f"\n{'shape':6}{'ranks':>6}{'checkpoint':>12}{'PyTorch tok/s':>15}{'Sherd tok/s':>13}{'ratio':>7}"
      f"{'of matmul floor':>17}{'PyTorch MiB':>13}{'Sherd MiB':>11}")
for (shape, world, checkpoint), pair in sorted(table.items()):
    if len(pair) < 2:
        print(f'{shape:6}{world:>6}{str(checkpoint):>12}  one side is missing')
        continue
    torch, sherd = pair['torch'], pair['sherd']
    print(f"{shape:6}{world:>6}{'on' if checkpoint else 'off':>12}{torch['tokens_per_s']:>15.0f}"
          f"{sherd['tokens_per_s']:>13.0f}{sherd['tokens_per_s'] / torch['tokens_per_s']:>7.1f}"
          f"{sherd['matmul_floor_share']:>17.2f}{torch['peak_rss_mib']:>13}{sherd['peak_rss_mib']:>11}")
END
