"""One rank of three fails: phase x fault x launcher. Prints when the others ended and what they said.

    fault_table_test.py <fault_probe>        each phase with each fault once, launchers and victims in turn
    fault_table_test.py <fault_probe> full   all of them
    fault_table_test.py <fault_probe> one PHASE FAULT LAUNCHER RANK

Survivors have to end by themselves, with another code than 0, within the deadline and a second. They are timed from the
moment the fault struck, or from their own beginning if that was later: launchers start ranks one after another. What
their own heartbeat was late by is allowed on top; on an idle machine that is nothing.
"""

import json
import re
import sys

from faults import DEADLINE, FAULTS, LAUNCHERS, PHASES, RANKS, Job, expect, installed, probe_of, run_checks

# The gathers or reductions of the first step are 10 and 6; this one is in the second step.
CALLS = {"gather": 13, "reduce": 8, "step": 2}
COLLECTIVE = r"(all_gather|reduce_scatter|all_reduce|barrier)( of \d+ bytes\b[^;]*)? \(#\d+\)( in unit '[^']*')? on '"


def first_failure(phase, fault, victim):
    """What every survivor has to say: who failed first, in which way, and in which collective."""
    if phase == "rendezvous":
        others = r"ranks? ([\d]+, )*%d\b" % victim
        return [others + r"( of 3)? did not arrive within|was told to stop while it waited for " + others]
    if fault == "stop":
        late = r"timed out on rank \d: (rank %d of 3 did not call it|the exchange with rank %d was not done) within %ds"
        return [late % (victim, victim, DEADLINE), COLLECTIVE]
    if fault == "throw":
        return [r"rank %d aborted: .*the injected fault" % victim, COLLECTIVE]
    if phase == "shutdown" and fault == "exit":
        return [r"rank %d left the group of 3" % victim, COLLECTIVE]
    return [r"lost the connection to rank %d: the process ended" % victim, COLLECTIVE]


def check_survivor(job, phase, fault, victim, rank):
    """Returns the seconds it took and its text."""
    report = job.rank(rank)
    expect(report is not None and report.code is not None, "rank %d did not end by itself: %s" %
           (rank, report and report.lines[-2:]))
    expect(report.code != 0, "rank %d ended with 0" % rank)
    for pattern in first_failure(phase, fault, victim):
        expect(re.search(pattern, report.text), "rank %d does not say '%s': %s" % (rank, pattern, report.text))
    if phase in ("gather", "reduce"):
        expect("unit '" in report.text, "rank %d names no unit: %s" % (rank, report.text))
    strikes = job.rank(victim).said("strikes")
    expect(strikes is not None, "the fault did not strike")
    took = job.ended[rank] - max(strikes[0], report.said("begins")[0])
    late = float(report.said("late")[1])
    expect(took <= DEADLINE + 1 + late, "rank %d took %.2f s, %.2f s of them late" % (rank, took, late))
    if phase != "rendezvous":
        flight = job.flight(rank)
        expect(flight and flight.startswith("rank %d failed: " % rank), "rank %d left no flight record" % rank)
        expect("latest " in flight and "all_gather" in flight, "the flight record is empty: " + flight[:300])
    return took, report.text


def check_torchrun(job, fault, victim, survivors):
    files = job.error_files()
    for rank in survivors:
        expect(rank in files, "rank %d left no error file; there are %s" % (rank, sorted(files)))
        message = json.loads(files[rank])["message"]
        expect(message["message"].endswith(job.rank(rank).text.replace(" | ", "\n")), "the error file says %s" % message)
        expect(message["extraInfo"]["timestamp"].isdigit(), "no timestamp: %s" % message)
    if fault in ("kill", "throw"):
        root = job.printed().partition("Root Cause")[2]
        named = re.search(r"rank\s*: (\d+)", root)
        expect(named and int(named.group(1)) == victim, "torchrun does not name rank %d: %s" % (victim, root[:400]))


def row(probe, phase, fault, launcher, victim):
    job = Job(probe, launcher, {"phase": phase, "fault": fault, "rank": victim, "call": CALLS.get(phase, 1),
                                "deadline": DEADLINE,
                                "meet": DEADLINE if phase == "rendezvous" else 60})
    try:
        survivors = [r for r in range(RANKS) if r != victim]
        codes = job.wait(stopped=[victim] if fault == "stop" else [])
        results = [check_survivor(job, phase, fault, victim, r) for r in survivors]
        said = [job.rank(r).code for r in survivors]
        if launcher == "plain":
            expect([codes[r] for r in survivors] == said, "exit codes %s, announced %s" % (codes, said))
        else:
            expect(codes[0] != 0, "%s ended with 0" % launcher)
        if launcher == "torchrun":
            check_torchrun(job, fault, victim, survivors)
        left = job.left_behind()
        expect(not left, "left behind: %s" % ", ".join(left))
        return "%-10s %-5s %-8s rank %d | %5.2f s | codes %s, launcher %s | %s" % (
            phase, fault, launcher, victim, max(took for took, _ in results), said, codes, results[0][1][:230])
    finally:
        job.close()


def rows(arguments):
    if arguments[:1] == ["one"]:
        phase, fault, launcher, victim = arguments[1:]
        return [(phase, fault, launcher, int(victim))]
    table = []
    for p, phase in enumerate(PHASES):
        for f, fault in enumerate(FAULTS):
            for k in range(len(LAUNCHERS) if arguments[:1] == ["full"] else 1):
                table.append((phase, fault, LAUNCHERS[(p + f + k) % len(LAUNCHERS)], (p + 2 * f + k) % RANKS))
    return table


def main():
    probe = probe_of(sys.argv[1:])
    checks = []
    for phase, fault, launcher, victim in rows(sys.argv[2:]):
        name = "%s in %s under %s ends the others" % (fault, phase, launcher)
        if not installed(launcher):
            print("SKIP %s: %s is not installed" % (name, launcher))
            continue
        checks.append((name, lambda a=(phase, fault, launcher, victim): row(probe, *a)))
    sys.exit(run_checks(checks, together=3))


if __name__ == "__main__":
    main()
