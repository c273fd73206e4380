"""Twenty faults at random points in a row: all ranks end, and no process, port, file or shared memory is left behind.

    fault_random_test.py <fault_probe> [SEED [COUNT]]

A fault is one that a rank of the table brings about at a random call of its training, or a signal from outside at a
random time, also while ranks still meet. The seed is printed first; the same seed draws the same faults.
"""

import random
import sys
import time

from faults import DEADLINE, LAUNCHERS, RANKS, Job, expect, installed, kill, probe_of, run_checks

CALLS = {"rendezvous": 1, "gather": 40, "reduce": 24, "step": 4, "shutdown": 1}


def draw(dice):
    fault = {"launcher": dice.choice([name for name in LAUNCHERS if installed(name)]), "rank": dice.randrange(RANKS)}
    if dice.random() < 0.5:
        after = dice.choice([0.05, 0.2, 1.0]) * dice.random()
        return {**fault, "phase": "outside", "fault": dice.choice(["kill", "stop"]), "after": round(after, 3)}
    phase = dice.choice(sorted(CALLS))
    return {**fault, "phase": phase, "fault": dice.choice(["kill", "stop", "exit", "throw"]),
            "call": dice.randint(1, CALLS[phase])}


def strike_from_outside(job, fault):
    end = time.monotonic() + 60
    while not all(job.rank(r) and job.rank(r).pid for r in range(RANKS)):
        expect(time.monotonic() < end and any(p.poll() is None for p in job.processes), "the ranks did not begin")
        time.sleep(0.01)
    time.sleep(fault["after"])
    kill(job.rank(fault["rank"]).pid, 9 if fault["fault"] == "kill" else 19)


def check(probe, fault):
    victim = fault["rank"]
    flags = {"deadline": DEADLINE, "meet": DEADLINE}
    outside = fault["phase"] == "outside"
    if outside:
        flags["steps"] = 1000000  # there is always something to disturb
    else:
        flags.update({name: fault[name] for name in ("phase", "fault", "rank", "call")})
    job = Job(probe, fault["launcher"], flags)
    try:
        if outside:
            strike_from_outside(job, fault)
        job.wait(stopped=[victim] if fault["fault"] == "stop" else [])
        codes = {}
        for r in range(RANKS):
            report = job.rank(r)
            codes[r] = report.code if report else None
            if r != victim:
                expect(codes[r], "rank %d ended with %s: %s" % (r, codes[r], report and report.lines[-3:]))
        left = job.left_behind()
        expect(not left, "left behind: %s" % ", ".join(left))
        texts = [job.rank(r).text for r in range(RANKS) if r != victim and job.rank(r) is not None]
        return "codes %s | %s" % (codes, (texts or [""])[0][:160])
    finally:
        job.close()


def main():
    probe = probe_of(sys.argv[1:])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int(time.time()) % 1000000
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 20
    print("seed %d" % seed, flush=True)
    dice = random.Random(seed)
    faults = [draw(dice) for _ in range(count)]
    checks = [("%d: %s" % (k + 1, " ".join("%s=%s" % item for item in fault.items())),
               lambda fault=fault: check(probe, fault)) for k, fault in enumerate(faults)]
    sys.exit(run_checks(checks, together=3))


if __name__ == "__main__":
    main()
