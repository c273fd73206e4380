"""What the tests of the language model's program share: running it, and reading what it leaves."""

import json
import math
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time

STEP_KEYS = ["step", "loss", "gradient_norm", "learning_rate", "tokens", "tokens_per_second",
             "peak_bytes", "seconds"]
# A model that trains a step in milliseconds.
SMALL = {"dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "seq": 32, "batch": 12, "eval_windows": 8,
         "eval_every": 0, "generate": 0}


class Failure(Exception):
    """A check that does not hold."""


def expect(condition, why):
    if not condition:
        raise Failure(why)


def small(*flags):
    """The flags of a small model, and the given ones, which win."""
    words = [word for name, value in SMALL.items() if "--" + name not in flags for word in ("--" + name, str(value))]
    return words + list(flags)


class Runs:
    """Runs the program in a folder of its own, which goes at the end."""

    def __init__(self, program):
        self.program = os.path.abspath(program)
        self.folder = tempfile.mkdtemp(prefix="llm_runs_")
        self.environment = {k: v for k, v in os.environ.items()
                            if not k.startswith(("OMPI_", "PMIX_", "PMI_", "SLURM_", "SHERD_", "MASTER_"))
                            and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
        self.environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                TMPDIR=self.folder)
        words = "in the beginning god created heaven and earth light day night waters".split()
        draw = random.Random(1)
        self.text = self.file("text", " ".join(draw.choice(words) for _ in range(6000)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.folder, name)

    def file(self, name, content):
        with open(self.path(name), "w") as out:
            out.write(content)
        return self.path(name)

    def start(self, arguments, launcher=(), **environment):
        return subprocess.Popen([*launcher, self.program, *arguments], cwd=self.folder, text=True,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                env={**self.environment, **environment})

    def run(self, arguments, launcher=(), timeout=120, **environment):
        """Returns (exit code, stdout, stderr)."""
        process = self.start(arguments, launcher, **environment)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise Failure("%s: no end after %d s" % (" ".join(arguments), timeout))
        return process.returncode, out, err

    def train(self, name, *flags, launcher=()):
        """A run that has to succeed; returns its metrics and its stdout."""
        code, out, err = self.run(["--data", self.text, "--out", self.path(name), *small(*flags)], launcher)
        expect(code == 0, "exit code %d: %s" % (code, err.strip() or out))
        return read_metrics(self.path(name)), out


def read_metrics(folder, complete=True):
    """Reads metrics.jsonl and checks every line. A run that was killed may end in half a line."""
    with open(os.path.join(folder, "metrics.jsonl"), newline="") as file:
        text = file.read()
    lines = text.split("\n")
    rest = lines.pop()
    expect(rest == "" or not complete, "the last line has no end: " + rest)
    records = []
    for number, line in enumerate(lines, 1):
        record = json.loads(line)
        missing = [key for key in STEP_KEYS if not isinstance(record.get(key), (int, float))]
        expect(not missing, "line %d has no number for %s" % (number, missing))
        expect(record["step"] == number, "line %d is of step %s" % (number, record["step"]))
        expect(all(math.isfinite(record[key]) for key in STEP_KEYS), "line %d is not finite" % number)
        records.append(record)
    return records


def mpirun(ranks):
    return ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]


def torchrun(ranks):
    # Debian's torchrun fails without a map of outputs; this one concerns no rank.
    return ["torchrun", "--no_python", "--nproc_per_node", str(ranks), "--monitor_interval", "0.1",
            "-r", "9:1", "-t", "9:1"]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def ranks_by_hand(rank, size, port):
    """The variables of one rank as torchrun sets them, without an agent."""
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def wait_for(condition, seconds, what):
    end = time.monotonic() + seconds
    while not condition():
        expect(time.monotonic() < end, "%s: not within %d s" % (what, seconds))
        time.sleep(0.02)


def main(checks):
    """Runs all checks, functions of Runs whose first doc line names them; prints a line for each."""
    if len(sys.argv) != 2:
        sys.exit("usage: %s <sherd_train_llm>" % os.path.basename(sys.argv[0]))
    failed = False
    with Runs(sys.argv[1]) as runs:
        for check in checks:
            name, why = check.__doc__.split("\n")[0].strip().rstrip("."), None
            needed = [tool for tool in getattr(check, "needs", ()) if shutil.which(tool) is None]
            if needed:
                print("SKIP %s: %s is not installed" % (name, ", ".join(needed)), flush=True)
                continue
            try:
                check(runs)
            except (Failure, OSError, ValueError, KeyError, IndexError) as error:
                why = " ".join(("%s: %s" % (type(error).__name__, error)).split())
            print("FAIL %s: %s" % (name, why) if why else "PASS %s" % name, flush=True)
            failed = failed or why is not None
    sys.exit(1 if failed else 0)


def needs(*tools):
    """Marks a check that is skipped where a program is missing."""
    def mark(check):
        check.needs = tools
        return check
    return mark
