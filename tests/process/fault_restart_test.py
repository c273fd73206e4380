"""Training goes on after a fault: in a new attempt of torchrun, or in the same processes without the rank that failed.

    fault_restart_test.py <fault_probe>
"""

import re
import socket
import struct
import sys
import time

from faults import RANKS, Job, expect, installed, probe_of, run_checks


def results(job, ranks, attempt=0):
    """What the ranks ended with, bit by bit: the loss, the norm of the gradients, all parameters."""
    said = []
    for r in ranks:
        result = job.rank(r, attempt) and job.rank(r, attempt).said("result")
        expect(result, "rank %d of attempt %d has no result: %s" % (r, attempt, job.printed()[-600:]))
        said.append(result[1])
    expect(len(set(said)) == 1, "ranks end with different results")
    return said[0]


def undisturbed(probe, ranks):
    job = Job(probe, "plain", {}, ranks)
    try:
        expect(job.wait() == [0] * ranks, "the undisturbed run failed: " + job.printed()[-600:])
        return results(job, range(ranks))
    finally:
        job.close()


def has_key(port, key):
    """Whether torchrun's store has a key, in the dialect of PyTorch from 2.2 on, or of earlier ones."""
    text = ("/" + key).encode()
    check = struct.pack("<QQ", 1, len(text)) + text
    for request in (b"\0" + struct.pack("<I", 0x3C85F7CE) + b"\5" + check, b"\4" + check):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            connection.sendall(request)
            try:
                answer = connection.recv(1)
            except ConnectionResetError:
                answer = b""
            if answer:
                return answer == b"\0"
    raise ValueError("torchrun's store does not answer")


def check_restart(probe, fault):
    want = undisturbed(probe, RANKS)
    job = Job(probe, "torchrun", {"phase": "gather", "fault": fault, "rank": 1, "call": 13, "attempts": 2, "linger": 2},
              restarts=2)
    try:
        end = time.monotonic() + 120
        while not all(job.rank(r, 2) and job.rank(r, 2).said("result") for r in range(RANKS)):
            expect(time.monotonic() < end and job.processes[0].poll() is None, "no third attempt: " + job.printed()[-600:])
            time.sleep(0.02)
        for attempt in range(3):
            expect(has_key(job.port, "sherd/meeting/none/%d" % attempt), "the key of attempt %d is gone" % attempt)
        expect(not has_key(job.port, "sherd/meeting/none/3"), "a key that nobody has set is there")
        expect(job.wait() == [0], "torchrun failed: " + job.printed()[-600:])
        for attempt in range(2):
            for r in (0, 2):
                expect("rank 1" in job.rank(r, attempt).text, "attempt %d: %s" % (attempt, job.rank(r, attempt).text))
        expect(results(job, range(RANKS), 2) == want, "the third attempt's result is not that of an undisturbed run")
        left = job.left_behind()
        expect(not left, "left behind: %s" % ", ".join(left))
    finally:
        job.close()


def check_regroup(probe, fault, victim, size):
    want = undisturbed(probe, size)
    job = Job(probe, "plain", {"phase": "gather", "fault": fault, "rank": victim, "call": 13, "regroup": size})
    try:
        codes = job.wait()
        going = [r for r in range(RANKS) if r != victim or fault == "throw"]
        expect(len(going) == size, "the test asks for %d of %d" % (size, len(going)))
        for new, r in enumerate(going):
            expect(codes[r] == 0, "rank %d ended with %s: %s" % (r, codes[r], job.rank(r).lines[-3:]))
            expect(r == victim or "rank %d" % victim in job.rank(r).text, "rank %d says %s" % (r, job.rank(r).text))
            goes_on = job.rank(r).said("goes on as")
            expect(goes_on and goes_on[1] == "rank %d of %d in generation 1" % (new, size), "rank %d: %s" % (r, goes_on))
        expect(results(job, going) == want, "the result is not that of a fresh run of %d ranks" % size)
        left = job.left_behind()
        expect(not left, "left behind: %s" % ", ".join(left))
    finally:
        job.close()


def check_lost_store(probe):
    job = Job(probe, "plain", {"phase": "gather", "fault": "kill", "rank": 0, "call": 13, "regroup": 2})
    try:
        job.wait()
        for r in (1, 2):
            texts = [words for _, words in job.rank(r).lines if words.startswith("fails:")]
            expect(len(texts) == 2 and "lost the connection to rank 0" in texts[0], "rank %d says %s" % (r, texts))
            expect(re.search("survivors cannot meet: .*give it to FromStore", texts[1]), "rank %d says %s" % (r, texts[1]))
            expect(job.rank(r).code == 3, "rank %d ended with %s" % (r, job.rank(r).code))
    finally:
        job.close()


def main():
    probe = probe_of(sys.argv[1:])
    checks = [("two ranks go on without the third, as a run of two", lambda: check_regroup(probe, "kill", 2, 2)),
              ("the first and the last go on without the second", lambda: check_regroup(probe, "kill", 1, 2)),
              ("all three go on after one has thrown", lambda: check_regroup(probe, "throw", 1, 3)),
              ("survivors of the rank that served the store say what is missing", lambda: check_lost_store(probe))]
    for fault in ("kill", "throw"):
        name = "torchrun's third attempt is clean, with two old keys in its store: " + fault
        if installed("torchrun"):
            checks.append((name, lambda fault=fault: check_restart(probe, fault)))
        else:
            print("SKIP %s: torchrun is not installed" % name)
    sys.exit(run_checks(checks, together=3))


if __name__ == "__main__":
    main()
