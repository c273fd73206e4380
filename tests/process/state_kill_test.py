#!/usr/bin/env python3
"""Ranks killed while they save: the newest state always loads and is of one step. Disks that are full or read-only.

    state_kill_test.py <state_probe>      prints PASS, FAIL or SKIP per check

SHERD_TEST_FULL=1 kills at 100 random points instead of 16.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from llm_runs import Failure, expect, free_port, ranks_by_hand

POINTS = 100 if os.environ.get("SHERD_TEST_FULL") else 16
RANKS = 2
program = os.path.abspath(sys.argv[1])
clean = {k: v for k, v in os.environ.items()
         if not k.startswith(("OMPI_", "PMIX_", "PMI_", "SLURM_", "MASTER_"))
         and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}


def start(root, *arguments, before=()):
    port = free_port()
    return [subprocess.Popen([*before, program, root, "save", *arguments], stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.PIPE, env={**clean, **ranks_by_hand(rank, RANKS, port)})
            for rank in range(RANKS)]


def newest(root):
    done = subprocess.run([program, root, "check"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean,
                          timeout=60)
    expect(done.returncode == 0 and done.stdout.startswith("step "), "the newest state: " + done.stderr)
    return int(done.stdout.split()[1])


def killed(root):
    """One rank, or all, killed at random points of saving leave a newest state that loads"""
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    print("  seed %d" % seed, flush=True)
    before = 0
    for point in range(POINTS):
        ranks = start(root)
        # Behind the first saves, then anywhere within one or two more.
        for _ in range(draw.randrange(1, 4)):
            if not ranks[0].stdout.readline().startswith("saved "):
                raise Failure("no save: " + ranks[0].stderr.read()[-500:])
        time.sleep(draw.random() * 0.06)
        victims = ranks if point % 2 else [ranks[draw.randrange(RANKS)]]
        for victim in victims:
            victim.send_signal(signal.SIGKILL)
        printed = 0
        for rank in ranks:
            try:
                out, _ = rank.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                rank.kill()
                raise Failure("a survivor did not end (seed %d, point %d)" % (seed, point))
            expect(rank.returncode != 0, "a survivor ended with 0")
            for line in out.splitlines():
                printed = max(printed, int(line.split()[1]))
        step = newest(root)
        expect(step >= max(printed, before), "step %d was saved, %d is the newest (seed %d)" % (printed, step, seed))
        before = step
    print("  %d points, the newest state is of step %d" % (POINTS, before), flush=True)


def full(root):
    """A full disk is one clear error on all ranks, and the state before stays"""
    on_small_disk(root, "size=9m", "", "No space left on device")


def read_only(root):
    """A read-only disk is one clear error on all ranks, and the state before stays"""
    on_small_disk(root, "size=64m", "mount -o remount,ro {0}; ", "Read-only file system")


def on_small_disk(root, size, then, why):
    # A state takes 3.6 MB, so a small disk holds two.
    script = ("mount -t tmpfs -o %s none {0} && {1} {0} save 1 && {1} {0} check && %s"
              "{1} {0} save 9; echo code $?; {1} {0} check; ls -A {0}" % (size, then)).format(root, program)
    os.makedirs(root, exist_ok=True)
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=clean, timeout=60)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        return "file systems cannot be mounted here: " + done.stderr.strip().splitlines()[-1]
    lines = done.stdout.split("\n")
    expect("code 1" in lines, done.stdout + done.stderr)
    expect(done.stderr.count(why) == 1, "stderr: " + done.stderr)
    after = lines[lines.index("code 1") + 1:]
    expect(after[0].startswith("step ") and int(after[0].split()[1]) >= 1, "afterwards: %s" % after)
    expect(all(name.startswith("step-") for name in after[1:] if name), "left behind: %s" % after)


failed = False
for check in (killed, full, read_only):
    folder = tempfile.mkdtemp(prefix="state_kill_")
    try:
        skipped = check(os.path.join(folder, "states"))
        print("SKIP %s: %s" % (check.__doc__, skipped) if skipped else "PASS " + check.__doc__, flush=True)
    except (Failure, OSError, ValueError, IndexError, subprocess.TimeoutExpired) as error:
        failed = True
        print("FAIL %s: %s" % (check.__doc__, " ".join(str(error).split())), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
sys.exit(1 if failed else 0)
