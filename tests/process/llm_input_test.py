#!/usr/bin/env python3
"""Bad input to the language model's program: a clear error, before any work, and nothing lost.

    llm_input_test.py <sherd_train_llm>      prints PASS, FAIL or SKIP per check
"""

import os
import signal
import time

from llm_runs import (expect, free_port, main, mpirun, needs, ranks_by_hand, read_metrics, small, wait_for)


def refused(runs, arguments, code, *texts, **how):
    """Runs the program on input it has to refuse."""
    out_folder = runs.path("refused")
    ended, out, err = runs.run([*arguments, "--out", out_folder], **how)
    expect(ended == code, "exit code %d instead of %d: %s" % (ended, code, err))
    for text in texts:
        expect(text in err, "'%s' is not in: %s" % (text, err))
    expect(out == "", "stdout has: " + out)
    expect(not os.path.exists(out_folder), "the output folder was made")
    return err


def flags(runs):
    """Flags that are unknown, malformed or do not go together are refused with their names."""
    good = ["--data", runs.text, *small()]
    refused(runs, good + ["--stesp", "3"], 2, "unknown flag --stesp", "did you mean --steps?")
    refused(runs, good + ["--steps", "many"], 2, "--steps takes an integer of at least 1, not 'many'")
    refused(runs, good + ["--lr"], 2, "--lr needs a value")
    refused(runs, ["--data", runs.text, "--dim", "30", "--heads", "4"], 2,
            "--dim 30 is not divisible by --heads 4")
    refused(runs, ["--data", runs.text, "--dim", "2048", "--heads", "4"], 2, "heads of size 512; at most 256")
    refused(runs, small(), 2, "--data is missing")
    code, _, err = runs.run(["--data", runs.text])
    expect(code == 2 and "--out is missing" in err, err)


def texts(runs):
    """Texts that are missing, empty, no file or too short are refused with their names."""
    empty, short = runs.file("empty", ""), runs.file("short", "x" * 65)
    missing = runs.path("missing")
    refused(runs, ["--data", runs.text, missing, *small()], 1, "text file %s cannot be found" % missing)
    refused(runs, ["--data", empty, *small()], 1, "text file %s is empty" % empty)
    refused(runs, ["--data", runs.folder, *small()], 1, "is a folder")
    refused(runs, ["--data", short, *small()], 1, "65 bytes", "at least 66")


def said_once(runs):
    """Of several ranks only the first says what all find out."""
    hand = ranks_by_hand(1, 2, free_port())
    expect(refused(runs, ["--nonsense"], 2, **hand) == "", "rank 1 also spoke")


@needs("mpirun")
def said_once_after_meeting(runs):
    """A missing text under mpirun is told once, and all ranks end"""
    missing = runs.path("missing")
    out_folder = runs.path("refused")
    code, _, err = runs.run(["--data", missing, "--out", out_folder, *small()], mpirun(3))
    expect(code == 1, "exit code %d" % code)
    expect(err.count("cannot be found") == 1, err)
    expect(not os.path.exists(out_folder), "the output folder was made")


def earlier_run(runs):
    """A folder that holds a run is refused, and the run in it stays as it is."""
    folder = runs.path("earlier")
    for name in ("metrics.jsonl", "report.html"):
        os.mkdir(folder)
        kept = runs.file("earlier/" + name, "precious\n")
        code, out, err = runs.run(["--data", runs.text, "--out", folder, *small()])
        expect(code == 1 and folder in err, "exit code %d: %s" % (code, err))
        expect(out == "", "stdout has: " + out)
        with open(kept) as file:
            expect(file.read() == "precious\n", "the file was changed")
        expect(os.listdir(folder) == [name], "the folder has %s" % os.listdir(folder))
        os.remove(kept)
        os.rmdir(folder)
    blocked = runs.file("blocked", "a file") + "/run"
    code, _, err = runs.run(["--data", runs.text, "--out", blocked, *small()])
    expect(code == 1 and blocked in err, "exit code %d: %s" % (code, err))


def lonely(runs, rank, missing):
    arguments = ["--data", runs.text, *small("--timeout", "2")]
    began = time.monotonic()
    err = refused(runs, arguments, 1, timeout=30, **ranks_by_hand(rank, 3, free_port()))
    took = time.monotonic() - began
    expect(2 <= took < 10, "it took %.1f s with a timeout of 2 s" % took)
    expect(all(word in err for word in missing), "%s not all named in: %s" % (missing, err))


def no_peers(runs):
    """Peers that never come are named within the timeout."""
    lonely(runs, 0, ["1", "2"])


def no_first_rank(runs):
    """A first rank that never comes is named within the timeout."""
    lonely(runs, 1, ["0"])


def start_pair(runs, name, *flags):
    port = free_port()
    arguments = ["--data", runs.text, "--out", runs.path(name), *small("--steps", "100000", *flags)]
    pair = [runs.start(arguments, **ranks_by_hand(rank, 2, port)) for rank in (0, 1)]
    metrics = os.path.join(runs.path(name), "metrics.jsonl")

    def trains():
        ended = [p for p in pair if p.poll() is not None]
        expect(not ended, "ended early: " + "".join(p.stderr.read() for p in ended))
        return os.path.exists(metrics) and os.path.getsize(metrics) > 1000

    try:
        wait_for(trains, 60, "first steps")
    except BaseException:
        for process in pair:
            process.kill()
        raise
    return pair


def killed_peer(runs):
    """A peer that dies in a step ends the other with its name, and finished steps stay."""
    first, second = start_pair(runs, "killed_peer")
    second.send_signal(signal.SIGKILL)
    second.communicate()
    try:
        _, err = first.communicate(timeout=20)
    finally:
        first.kill()
    expect(first.returncode == 1, "exit code %d" % first.returncode)
    expect("train rank 0: " in err and "rank 1" in err.split("train rank 0: ")[1], err)
    expect(len(read_metrics(runs.path("killed_peer"))) > 3, "steps are missing")


def killed_run(runs):
    """A run that is killed leaves every finished step readable."""
    pair = start_pair(runs, "killed_run")
    for process in pair:
        process.kill()
    for process in pair:
        process.communicate()
    expect(len(read_metrics(runs.path("killed_run"), complete=False)) > 3, "steps are missing")


def stopped_peer(runs):
    """A peer that hangs is named within the timeout."""
    first, second = start_pair(runs, "stopped_peer", "--timeout", "3")
    second.send_signal(signal.SIGSTOP)
    began = time.monotonic()
    try:
        _, err = first.communicate(timeout=30)
    finally:
        first.kill()
        second.kill()
        second.communicate()
    expect(first.returncode == 1 and "rank 1" in err.split("train rank 0: ")[-1], err)
    expect(time.monotonic() - began < 15, "it took %.1f s with a timeout of 3 s" % (time.monotonic() - began))


def diverged(runs):
    """A loss that is no number ends the run with advice, and finished steps stay."""
    folder = runs.path("diverged")
    code, _, err = runs.run(["--data", runs.text, "--out", folder, *small(
        "--steps", "200", "--lr", "1e15", "--clip", "0", "--warmup", "0")])
    expect(code == 1 and "is not finite" in err and "--lr" in err, "exit code %d: %s" % (code, err))
    read_metrics(folder)


if __name__ == "__main__":
    main([flags, texts, said_once, said_once_after_meeting, earlier_run, no_peers, no_first_rank,
          killed_peer, killed_run, stopped_peer, diverged])
