#!/usr/bin/env python3
"""Runs of the language model that end early and go on: the same losses as those that did not.

    llm_state_test.py <sherd_train_llm>      prints PASS, FAIL or SKIP per check
"""

import glob
import json
import os
import signal

from llm_runs import expect, main, mpirun, needs, read_metrics, small, torchrun, wait_for

STEPS = 40
FLAGS = ["--steps", str(STEPS), "--dtype", "f64", "--dropout", "0.1", "--save_every", "5", "--lr", "1e-2"]
# What a run that goes on has to repeat to the bit.
EXACT = ["loss", "gradient_norm", "learning_rate", "samples", "micro_batches", "tokens"]
whole = {}


def command(runs, name, *flags):
    return ["--data", runs.text, "--out", runs.path(name), *small(*FLAGS, *flags)]


def uninterrupted(runs, ranks):
    """The metrics of a run from its first step to its last."""
    if ranks not in whole:
        code, out, err = runs.run(command(runs, "whole%d" % ranks), mpirun(ranks) if ranks > 1 else ())
        expect(code == 0, "exit code %d: %s" % (code, err.strip() or out))
        whole[ranks] = read_metrics(runs.path("whole%d" % ranks))
    return whole[ranks]


def lines_of(path):
    try:
        with open(path) as file:
            return file.read().count("\n")
    except FileNotFoundError:
        return 0


def interrupted(runs, name, launcher, how, least=12):
    """Starts a run and ends it by `how` when it has made some steps; returns its exit code and stderr."""
    process = runs.start(command(runs, name), launcher, **{})
    metrics = os.path.join(runs.path(name), "metrics.jsonl")
    wait_for(lambda: lines_of(metrics) >= least or process.poll() is not None, 60, "%d steps" % least)
    expect(process.poll() is None, "the run ended before it was interrupted")
    how(process)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def workers(process):
    """The processes of the program below a launcher."""
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as file:
                text = file.read()
        except OSError:
            continue
        pid, name = int(text.split(" ", 1)[0]), text[text.index("(") + 1:text.rindex(")")]
        parent = int(text[text.rindex(")") + 2:].split()[1])
        if name.startswith("sherd_train_llm"[:15]) and parent == process.pid:
            found.append(pid)
    return found


def kill_all(process):
    for pid in workers(process) + [process.pid]:
        os.kill(pid, signal.SIGKILL)


def goes_on(runs, name, ranks, flags=()):
    """Goes on with an interrupted run; returns its whole metrics."""
    launcher = mpirun(ranks) if ranks > 1 else ()
    code, out, err = runs.run(command(runs, name, "--resume", *flags), launcher)
    expect(code == 0, "exit code %d: %s" % (code, err.strip() or out))
    expect("goes on after step " in out, "it began anew: " + out[:400])
    return read_metrics(runs.path(name))


def same(records, expected, exact):
    expect(len(records) == len(expected) == STEPS, "%d steps" % len(records))
    for a, b in zip(records, expected):
        for key in EXACT:
            near = a[key] == b[key] if exact else abs(a[key] - b[key]) <= 1e-11 * abs(b[key])
            expect(near or (not exact and key == "micro_batches"),
                   "step %d: %s is %r, uninterrupted %r" % (a["step"], key, a[key], b[key]))
    expect("validation_loss" in records[-1], "no validation at the end")


@needs("mpirun")
def killed(runs):
    """A run of two ranks that is killed goes on with the same bits."""
    expected = uninterrupted(runs, 2)
    interrupted(runs, "killed", mpirun(2), kill_all)
    expect(lines_of(os.path.join(runs.path("killed"), "metrics.jsonl")) < STEPS, "it was too quick to be killed")
    same(goes_on(runs, "killed", 2), expected, exact=True)


@needs("mpirun")
def other_ranks(runs):
    """A run of two ranks goes on with one, and with three, within rounding."""
    expected = uninterrupted(runs, 2)
    for ranks in (1, 3):
        name = "ranks%d" % ranks
        interrupted(runs, name, mpirun(2), kill_all)
        same(goes_on(runs, name, ranks), expected, exact=False)


def terminated(runs):
    """SIGTERM saves the step it finds, and the run goes on from there."""
    code, err = interrupted(runs, "terminated", (), lambda p: p.send_signal(signal.SIGTERM))
    expect(code == 143 and "SIGTERM: saved step " in err, "exit code %d: %s" % (code, err))
    step = int(err.split("saved step ")[1].split()[0])
    expect(lines_of(os.path.join(runs.path("terminated"), "metrics.jsonl")) == step, "steps after the saved one")
    same(goes_on(runs, "terminated", 1), uninterrupted(runs, 1), exact=True)


@needs("torchrun")
def restarted(runs):
    """torchrun starts a killed rank's job again, which goes on by itself."""
    expected = uninterrupted(runs, 2)
    launcher = torchrun(2)
    launcher[1:1] = ["--max_restarts", "1"]
    process = runs.start(command(runs, "restarted", "--resume", "--timeout", "20"), launcher)
    metrics = os.path.join(runs.path("restarted"), "metrics.jsonl")
    wait_for(lambda: lines_of(metrics) >= 12 or process.poll() is not None, 60, "12 steps")
    victims = workers(process)
    expect(len(victims) == 2, "%d workers" % len(victims))
    os.kill(victims[0], signal.SIGKILL)
    out, err = process.communicate(timeout=120)
    expect(process.returncode == 0, "exit code %d: %s" % (process.returncode, err[-2000:]))
    expect(out.count("goes on after step ") == 1, "it did not go on: " + out[:400])
    same(read_metrics(runs.path("restarted")), expected, exact=True)


def finished(runs):
    """A finished run that is started again has nothing to do, and one without --resume is refused."""
    uninterrupted(runs, 1)
    before = read_metrics(runs.path("whole1"))
    code, _, err = runs.run(command(runs, "whole1"))
    expect(code == 1 and "already holds a run" in err and "--resume" in err, err)
    code, out, err = runs.run(command(runs, "whole1", "--resume"))
    expect(code == 0 and "goes on after step %d" % STEPS in out, "exit code %d: %s" % (code, err))
    expect(read_metrics(runs.path("whole1")) == before, "the metrics changed")
    expect("validation loss %.4f" % before[-1]["validation_loss"] in out, "another validation loss: " + out[-200:])
    states = sorted(os.listdir(os.path.join(runs.path("whole1"), "states")))
    expect(states == ["step-%08d" % (STEPS - 5), "step-%08d" % STEPS], "states: %s" % states)
    with open(os.path.join(runs.path("whole1"), "states", states[-1], "manifest.json")) as file:
        written_by = json.load(file)["written_by"]
    expect("rank 0 of 1 on 1 host" in written_by, "the state does not say what wrote it: " + written_by)


def other_model(runs):
    """A state of another model is refused with the names of what differs, and the run in it stays."""
    uninterrupted(runs, 1)
    before = read_metrics(runs.path("whole1"))
    code, _, err = runs.run(["--data", runs.text, "--out", runs.path("whole1"), "--resume", *small(*FLAGS, "--dim", "48")])
    expect(code == 1 and "does not fit the model; different: " in err and "embedding.weight is f64 [256, 48] here" in err,
           err)
    expect(read_metrics(runs.path("whole1")) == before, "the metrics changed")


if __name__ == "__main__":
    main([killed, other_ranks, terminated, restarted, finished, other_model])
