#!/usr/bin/env python3
"""Whole runs of the classifier: it learns, launches agree, and labels on another device are refused or moved.

    classify_run_test.py <sherd_train_classifier>      prints PASS, FAIL or SKIP per check
"""

import re

from llm_runs import expect, main, mpirun, needs, torchrun

STEPS = 60
LIMIT = 1e-5  # relative difference of losses
LEARNT = 0.85  # accuracy; a guess among four classes has 0.25
KINDS = {"decoder": [], "encoder": ["--encoder"]}


def train(runs, *flags, launcher=()):
    """A run that has to succeed; returns its losses and its accuracy."""
    code, out, err = runs.run(list(flags), launcher)
    expect(code == 0, "exit code %d: %s" % (code, err.strip() or out))
    steps = re.findall(r"^step (\d+) loss (\S+)$", out, re.MULTILINE)
    last = re.search(r"^accuracy (\S+)\n\Z", out, re.MULTILINE)
    expect(last, "no accuracy: " + out[-200:])
    expect([int(step) for step, _ in steps] == list(range(1, len(steps) + 1)), "steps are missing: " + out[:200])
    return [float(loss) for _, loss in steps], float(last.group(1))


plain = {}


def plain_run(runs, kind):
    if kind not in plain:
        plain[kind] = train(runs, *KINDS[kind])
    return plain[kind]


def learns(kind):
    def check(runs):
        losses, accuracy = plain_run(runs, kind)
        print("  %s: loss %.4f to %.4f, accuracy %.4f" % (kind, losses[0], losses[-1], accuracy), flush=True)
        expect(len(losses) == STEPS, "%d steps" % len(losses))
        expect(losses[-1] < 0.8 * losses[0], "the loss goes from %s to %s" % (losses[0], losses[-1]))
        expect(accuracy >= LEARNT, "accuracy %s" % accuracy)

    check.__doc__ = "the %s learns" % kind
    return check


def agrees(kind, name, launcher, tools, *flags):
    def check(runs):
        losses, accuracy = train(runs, *KINDS[kind], *flags, launcher=launcher)
        want, want_accuracy = plain_run(runs, kind)
        expect(len(losses) == len(want), "%d steps" % len(losses))
        apart = max(abs(a - b) / abs(b) for a, b in zip(losses, want))
        print("  %s, %s: %.1e" % (kind, name, apart), flush=True)
        expect(apart <= LIMIT, "losses differ by %.1e" % apart)
        expect(accuracy >= LEARNT and abs(accuracy - want_accuracy) <= 0.02, "accuracy %s" % accuracy)

    check.__doc__ = "the %s on %s has the losses of a plain process" % (kind, name)
    return needs(*tools)(check)


def labels_elsewhere(kind):
    def check(runs):
        flags = [*KINDS[kind], "--steps", "3", "--labels_on", "1"]
        code, out, err = runs.run(flags)
        expect(code == 1 and "step" not in out, "exit code %d: %s" % (code, out))
        wanted = r"\[classifier_loss\] logits on cpu:0 and labels on cpu:1.*labels is i64 \[24\] on cpu:1"
        expect(re.search(wanted, err), "the message is: " + err)
        moved, _ = train(runs, *flags, "--move_labels")
        expect(moved == plain_run(runs, kind)[0][:3], "losses with moved labels are %s" % moved)

    check.__doc__ = "labels on another device than logits are refused, or moved, by the %s" % kind
    return check


def bad_flags(runs):
    """Flags that make no sense are told before anything runs."""
    for flags, word in ((["--depth", "3"], "unknown flag --depth"), (["--seq"], "--seq"), (["--lr", "x"], "--lr"),
                        (["--batch", "7", "--micro_batches", "2"], "--batch")):
        code, out, err = runs.run(flags)
        expect(code == 2 and word in err and out == "", "%s: exit code %d, %s" % (flags, code, err))


if __name__ == "__main__":
    checks = [bad_flags]
    for k in KINDS:
        checks += [learns(k), labels_elsewhere(k)]
        for ranks in (2, 4):
            checks.append(agrees(k, "mpirun -np %d" % ranks, mpirun(ranks), ["mpirun"]))
        checks.append(agrees(k, "mpirun -np 2 with 3 micro-batches", mpirun(2), ["mpirun"], "--micro_batches", "3"))
        checks.append(agrees(k, "torchrun with 2 processes", torchrun(2), ["torchrun"]))
    main(checks)
