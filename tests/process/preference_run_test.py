#!/usr/bin/env python3
"""Trains the preference example on pairs made from the licences that Debian has, on one and two ranks.

    preference_run_test.py PROGRAM MAKE_PAIRS
"""
import glob
import json
import os
import subprocess
import sys
import tempfile

program, make_pairs = (os.path.abspath(path) for path in sys.argv[1:3])
LICENCES = sorted(glob.glob("/usr/share/common-licenses/*"))
MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"] + (["--allow-run-as-root"] if os.getuid() == 0 else [])


def run(folder, ranks, name, *flags, check=True):
    metrics = os.path.join(folder, name + ".jsonl")
    launcher = MPIRUN + ["-np", str(ranks)] if ranks > 1 else []
    done = subprocess.run(launcher + [program, "--pairs", folder + "/train.jsonl", "--held_out",
                                      folder + "/held_out.jsonl", "--metrics", metrics, *flags],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=280)
    if check and done.returncode != 0:
        sys.exit("FAIL %s: exit code %d: %s" % (name, done.returncode, done.stderr[-2000:]))
    if not check:
        return done
    with open(metrics, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def expect(condition, what):
    if not condition:
        sys.exit("FAIL " + what)


with tempfile.TemporaryDirectory() as folder:
    made = subprocess.run([sys.executable, make_pairs, folder] + LICENCES,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    expect(made.returncode == 0, "pairs: " + made.stdout)

    records = run(folder, 2, "learns")
    before, after = records[0], records[-1]
    print("held-out accuracy %.3f -> %.3f, margin %.3f -> %.3f" % (
        before["held_out_accuracy"], after["held_out_accuracy"], before["held_out_margin"], after["held_out_margin"]))
    expect(before["held_out_accuracy"] == 0.5 and before["held_out_margin"] == 0, "the policy is not its reference")
    expect(after["held_out_accuracy"] >= 0.7, "it did not learn to prefer")
    expect(after["held_out_loss"] < before["held_out_loss"], "the held-out loss rose")
    print("PASS accuracy on held-out pairs rises on two ranks")

    short = ["--f64", "1", "--warmup_steps", "6", "--steps", "6"]
    alone = run(folder, 1, "alone", *short)
    for ranks, flags in ((2, []), (3, ["--micro_batches", "2"]), (2, ["--checkpoint", "0"])):
        other = run(folder, ranks, "other", *short, *flags)
        apart = max(abs(a[k] - b[k]) for a, b in zip(alone, other) for k in ("loss", "margin", "gradient_norm"))
        print("%d ranks %s: %.1e" % (ranks, " ".join(flags), apart))
        expect(len(other) == len(alone) and apart < 1e-9, "%d ranks differ by %.1e" % (ranks, apart))
    print("PASS what is logged does not depend on ranks, micro-batches or checkpoints")

    for flags, part in ((["--seq", "20"], "--seq"), (["--beta", "0"], "positive"), (["--dim", "30"], "--dim"),
                        (["--stepz", "1"], "unknown flag --stepz")):
        done = run(folder, 1, "refused", *flags, check=False)
        expect(done.returncode in (1, 2) and part in done.stderr, "%s: %s" % (flags, done.stderr))
    done = run(folder, 2, "missing/folder/x", check=False)
    expect(done.returncode != 0 and done.stderr.count("cannot write") == 1 and "left the group" not in done.stderr,
           "an unwritable file of metrics: " + done.stderr)
    print("PASS what does not fit is refused before training")
