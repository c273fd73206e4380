"""What the fault tests share: jobs of fault_probe under a launcher, when their ranks end, what they say and leave."""

import concurrent.futures
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

RANKS = 3
DEADLINE = 3  # seconds that a collective may take, and the meeting where that is where the fault is
PHASES = ["rendezvous", "gather", "reduce", "step", "shutdown"]
FAULTS = ["kill", "stop", "exit", "throw"]
LAUNCHERS = ["plain", "mpirun", "torchrun"]
PATIENCE = 150  # seconds after which a job counts as hanging, whatever it waits for


class Failure(Exception):
    """A check that does not hold."""


def expect(condition, why):
    if not condition:
        raise Failure(why)


def installed(launcher):
    return launcher == "plain" or shutil.which(launcher) is not None


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def clean_environment(temp):
    """The environment without any launcher's variables."""
    kept = {k: v for k, v in os.environ.items()
            if not k.startswith(("OMPI_", "PMIX_", "PMI_", "SLURM_", "SHERD_", "MASTER_", "TORCHELASTIC_"))
            and k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    return {**kept, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TMPDIR": temp}


class Rank:
    """What one rank of one attempt has written so far."""

    def __init__(self, path):
        with open(path, errors="replace") as file:
            self.lines = [line.rstrip("\n").split(" ", 1) for line in file if line.endswith("\n")]

    def said(self, start):
        """(seconds, rest) of the first line that begins so, or None."""
        for at, words in self.lines:
            if words.startswith(start):
                return float(at), words[len(start):].strip()
        return None

    @property
    def pid(self):
        begun = self.said("begins as process")
        return int(begun[1]) if begun else None

    @property
    def text(self):
        failed = self.said("fails:")
        return failed[1] if failed else ""

    @property
    def code(self):
        """The exit code that it announced last of all, None if it never came there."""
        ended = self.said("ends with")
        return int(ended[1]) if ended else None


def running(pid):
    try:
        with open("/proc/%d/stat" % pid) as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


class Job:
    """One start of fault_probe with `ranks` ranks."""

    def __init__(self, probe, launcher, flags, ranks=RANKS, restarts=0):
        self.launcher, self.ranks = launcher, ranks
        self.folder = tempfile.mkdtemp(prefix="sherd_fault_")
        self.temp, self.logs = os.path.join(self.folder, "tmp"), os.path.join(self.folder, "logs")
        os.mkdir(self.temp)
        self.shared_memory = set(os.listdir("/dev/shm"))
        self.port = free_port()
        self.output = open(os.path.join(self.folder, "output"), "w+", errors="replace")
        command = [probe, self.folder, *["%s=%s" % item for item in flags.items()]]
        if launcher == "plain":
            self.processes = [self.start(command, self.variables_of(rank)) for rank in range(ranks)]
        elif launcher == "mpirun":
            # Ranks get more than a second between SIGTERM and SIGKILL: this machine may be busy.
            self.processes = [self.start(["mpirun", "--oversubscribe", "--bind-to", "none", "--mca",
                                          "odls_base_sigkill_timeout", "15", "-np", str(ranks), *command], {})]
        else:
            # Debian's torchrun fails without a map of outputs; this one concerns no rank.
            self.processes = [self.start(["torchrun", "--no_python", "--nproc_per_node", str(ranks),
                                          "--monitor_interval", "0.1", "-r", "9:1", "-t", "9:1",
                                          "--max_restarts", str(restarts), "--log_dir", self.logs,
                                          "--master_port", str(self.port), *command], {})]
        self.ended = {}  # rank: seconds at which its process was gone

    def start(self, command, variables):
        return subprocess.Popen(command, env={**clean_environment(self.temp), **variables}, stdin=subprocess.DEVNULL,
                                stdout=self.output, stderr=subprocess.STDOUT, cwd=self.folder)

    def variables_of(self, rank):
        return {"RANK": str(rank), "WORLD_SIZE": str(self.ranks), "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(self.ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(self.port)}

    def rank(self, rank, attempt=0):
        try:
            return Rank(os.path.join(self.folder, "rank%d.%d" % (rank, attempt)))
        except OSError:
            return None

    def all_ranks(self):
        return [Rank(os.path.join(self.folder, name)) for name in sorted(os.listdir(self.folder))
                if re.fullmatch(r"rank\d+\.\d+", name)]

    def flight(self, rank, attempt=0):
        try:
            with open(os.path.join(self.folder, "flight%d.%d" % (rank, attempt)), errors="replace") as file:
                return file.read()
        except OSError:
            return None

    def printed(self):
        self.output.flush()
        with open(self.output.name, errors="replace") as file:
            return file.read()

    def error_files(self):
        """What ranks left where torchrun's agent looks, by local rank."""
        found = {}
        for folder, _, names in os.walk(self.logs):
            if "error.json" in names:
                with open(os.path.join(folder, "error.json")) as file:
                    found[int(os.path.basename(folder))] = file.read()
        return found

    def wait(self, stopped=()):
        """Returns when everything has ended; ranks in `stopped` are killed once the others have ended."""
        end = time.monotonic() + PATIENCE
        while any(process.poll() is None for process in self.processes):
            expect(time.monotonic() < end, "no end after %d s: %s" % (PATIENCE, self.printed()[-600:]))
            self.look(stopped)
            time.sleep(0.02)
        self.look(stopped)
        return [process.returncode for process in self.processes]

    def look(self, stopped):
        ranks = [self.rank(r) for r in range(self.ranks)]
        for r, rank in enumerate(ranks):
            if rank is not None and rank.pid and r not in self.ended and not running(rank.pid):
                self.ended[r] = time.monotonic()
        if stopped and all(r in self.ended or r in stopped for r in range(self.ranks)):
            for r in stopped:
                if ranks[r] is not None and ranks[r].pid and r not in self.ended:
                    kill(ranks[r].pid)

    def left_behind(self):
        """What is still there of a job that has ended."""
        left = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/cmdline" % pid, "rb") as file:
                    if self.folder.encode() in file.read() and running(int(pid)):
                        left.append("process " + pid)
            except OSError:
                pass
        listening = set()
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(table) as file:
                rows = [line.split() for line in file.readlines()[1:]]
            listening |= {"%d/%s" % (int(row[1].rsplit(":", 1)[1], 16), row[9]) for row in rows if row[3] == "0A"}
        for rank in self.all_ranks():
            sockets = rank.said("trains:")
            left += ["port " + name for name in (sockets[1].split() if sockets else []) if name in listening]
        left += [os.path.join(folder, name) for folder, _, names in os.walk(self.temp) for name in names]
        pids = {str(rank.pid) for rank in self.all_ranks()}
        left += ["shared memory " + name for name in set(os.listdir("/dev/shm")) - self.shared_memory
                 if "sherd" in name or pids & set(re.findall(r"\d+", name))]
        return left

    def close(self):
        """Ends what still runs and removes the folder."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for rank in self.all_ranks():
            if rank.pid and running(rank.pid):
                kill(rank.pid)
        self.output.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def run_checks(checks, together=1):
    """Runs (name, function) pairs, some at a time, and prints a line for each, in order. A function returns what
    to add to its line; it raises Failure. Returns the exit code."""
    def one(check):
        name, function = check
        try:
            return "PASS %s" % name, function()
        except (Failure, OSError, ValueError, KeyError, IndexError) as error:
            return "FAIL %s: %s" % (name, " ".join(("%s: %s" % (type(error).__name__, error)).split())), ""
    failed = False
    with concurrent.futures.ThreadPoolExecutor(together) as pool:
        for line, more in pool.map(one, checks):
            if more:
                print("  " + more)
            print(line, flush=True)
            failed = failed or line.startswith("FAIL")
    return 1 if failed else 0


def probe_of(arguments):
    if not arguments:
        sys.exit("usage: %s <fault_probe> [options]" % os.path.basename(sys.argv[0]))
    return os.path.abspath(arguments[0])
