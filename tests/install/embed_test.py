#!/usr/bin/env python3
"""Builds both embed examples from an installed Sherd, runs them on 1, 2 and 3 ranks and compares every gradient they print.

  embed_test.py <source> <build folder>

Expected values are plain loops here: the network, its derivative and the optimizer, for all ranks' samples together.
Prints a line "PASS ..." or "FAIL ...: reason" for each check.
"""

import math
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile

IN, HIDDEN, OUT, SAMPLES, STEPS = 5, 7, 3, 4, 3
RATE, MOMENTUM = 0.1, 0.9
EXAMPLES = ("embed", "embed_tape")


def run(what, command, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        print(done.stdout[-4000:])
        print(f"FAIL {what}: exit code {done.returncode}")
        sys.exit(1)
    return done.stdout


def plain_gradients(ranks):
    """{(step, layer, element): gradient} of the same network, with all samples on one machine."""
    first = [[0.5 * math.sin(o * IN + i + 1) for i in range(IN)] for o in range(HIDDEN)]
    second = [[0.5 * math.sin(o * HIDDEN + i + 1) for i in range(HIDDEN)] for o in range(OUT)]
    weights = {"first": first, "second": second}
    velocity = {name: [[0.0] * len(w[0]) for _ in w] for name, w in weights.items()}
    found = {}
    for step in range(STEPS):
        gradient = {name: [[0.0] * len(w[0]) for _ in w] for name, w in weights.items()}
        for rank in range(ranks):
            for s in range(SAMPLES):
                x = [math.sin(0.3 * (s * IN + i + 100 * rank + 1000 * step)) for i in range(IN)]
                h = [math.tanh(sum(w * v for w, v in zip(row, x))) for row in first]
                y = [sum(w * v for w, v in zip(row, h)) for row in second]
                dy = [(y[o] - math.cos(x[o])) / (SAMPLES * ranks) for o in range(OUT)]
                for o in range(OUT):
                    for i in range(HIDDEN):
                        gradient["second"][o][i] += dy[o] * h[i]
                for o in range(HIDDEN):
                    dh = sum(dy[p] * second[p][o] for p in range(OUT)) * (1 - h[o] * h[o])
                    for i in range(IN):
                        gradient["first"][o][i] += dh * x[i]
        for name, weight in weights.items():
            for o, row in enumerate(weight):
                for i in range(len(row)):
                    found[step, name, o * len(row) + i] = gradient[name][o][i]
                    velocity[name][o][i] = MOMENTUM * velocity[name][o][i] + gradient[name][o][i]
                    row[i] -= RATE * velocity[name][o][i]
    return found


def printed_gradients(program, ranks):
    command = [program]
    if ranks > 1:
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        command = ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", str(ranks), program]
    text = run(f"{os.path.basename(program)} on {ranks} ranks", command, timeout=200)
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(\d+) (\d+) (first|second) (\d+) (\S+)", line)
        if not match or (int(match[2]), match[3], int(match[4])) in found:
            print(f"FAIL {os.path.basename(program)} on {ranks} ranks: unexpected line {line!r}")
            sys.exit(1)
        found[int(match[2]), match[3], int(match[4])] = float(match[5])
    return found


def distance(got, want):
    """The largest relative distance, in L2 norm, of a layer's gradient of one step; infinite for other elements."""
    if set(got) != set(want):
        return math.inf
    worst = 0.0
    for group in {key[:2] for key in want}:
        keys = [key for key in want if key[:2] == group]
        norm = math.sqrt(sum(want[key] ** 2 for key in keys))
        worst = max(worst, math.sqrt(sum((got[key] - want[key]) ** 2 for key in keys)) / norm)
    return worst


def check(name, holds, why):
    print(f"PASS {name}" if holds else f"FAIL {name}: {why}")


def main(source, build):
    here = tempfile.mkdtemp()
    os.environ.update(CCACHE_BASEDIR=here, CCACHE_NOHASHDIR="1")
    try:
        prefix = os.path.join(here, "prefix")
        run("install", ["cmake", "--install", build, "--prefix", prefix])
        for example in EXAMPLES:
            lines = sum(1 for _ in open(os.path.join(source, "examples", example, example + ".cc")))
            check(f"{example} has at most 150 lines", lines <= 150, f"{lines} lines")
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            folder = os.path.join(here, example)
            run(f"configure {example}", ["cmake", "-S", os.path.join(source, "examples", example), "-B", folder, "-G",
                                         "Ninja", "-DCMAKE_BUILD_TYPE=Release", f"-DCMAKE_PREFIX_PATH={prefix}"])
            run(f"build {example}", ["cmake", "--build", folder])
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            check(f"{example} builds from the install prefix, {seconds:.0f} s of CPU", seconds < 60, f"{seconds:.0f} s")
        symbols = run("nm", ["nm", "-C", os.path.join(here, "embed", "embed")])
        check("embed links no tape", "sherd::Tape::" not in symbols and "sherd::Unit::" in symbols, "sherd::Tape is there")
        libraries = run("ldd", ["ldd", os.path.join(here, "embed", "embed")])
        check("embed needs no oneDNN", "libdnnl" not in libraries and "libgloo" in libraries, libraries)
        for ranks in (1, 2, 3):
            want = plain_gradients(ranks)
            got = {e: printed_gradients(os.path.join(here, e, e), ranks) for e in EXAMPLES}
            for example in EXAMPLES:
                error = distance(got[example], want)
                check(f"{example} on {ranks} ranks equals plain loops, {error:.1e}", error <= 1e-12, f"{error:.1e}")
            error = distance(got["embed"], got["embed_tape"])
            check(f"both agree on {ranks} ranks, {error:.1e}", error <= 1e-12, f"{error:.1e}")
    finally:
        shutil.rmtree(here)


main(*sys.argv[1:])
