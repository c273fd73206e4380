"""Counts what ctest ran, case by case, for run.sh.

    tally.py add STAGE FOLDER TALLY    reads what ctest left in a build folder: junit.xml, the list of
                                       tests in tests.json, and GoogleTest's files in test_results/
    tally.py labels TALLY FULL         adds a failure for each label that ran nothing
    tally.py report TALLY              prints skips, failures and the last line; exits 1 on failures

The tally is a file of lines: outcome (pass, fail, skip, or label: one that exists), stage, labels, name,
reason.
"""

import json
import os
import re
import sys
import xml.etree.ElementTree as xml

SCRIPT_LINE = re.compile(r"^(PASS|FAIL|SKIP) ([^:\n]*)(?:: (.*))?$", re.MULTILINE)


def gtest_cases(path):
    """Yields (outcome, name, reason) of each case in a file that GoogleTest wrote."""
    for case in xml.parse(path).getroot().iter("testcase"):
        name = "%s.%s" % (case.get("classname"), case.get("name"))
        skipped, failure = case.find("skipped"), case.find("failure")
        if case.get("status") == "notrun":
            yield "skip", name, "disabled in the source"
        elif failure is not None:
            yield "fail", name, (failure.get("message") or "").split("\n")[0]
        elif skipped is not None or case.get("result") == "skipped":
            text = skipped.get("message") or "" if skipped is not None else ""
            yield "skip", name, " ".join(text.split("\n")[1:]).strip() or "no reason given"
        else:
            yield "pass", name, ""


def printed_cases(output):
    """Yields the cases that a GoogleTest program reported before it ended without writing its file."""
    begun = None
    for mark, name in re.findall(r"^\[ *(RUN|OK|FAILED|SKIPPED) *\] ([\w/]+\.[\w/]+)", output, re.MULTILINE):
        if mark == "RUN":
            begun = name
        elif name == begun:
            yield {"OK": "pass", "FAILED": "fail", "SKIPPED": "skip"}[mark], name, ""
            begun = None
    if begun:
        yield "fail", begun, "the program ended here"


def cases_of(test, results):
    """Yields the cases of one entry of ctest; always at least one."""
    name, status = test.get("name"), test.get("status")
    output = test.findtext("system-out") or ""
    cases = []
    path = os.path.join(results, name + ".xml")
    if os.path.exists(path):
        try:
            cases = list(gtest_cases(path))
        except xml.ParseError:
            pass
        if status == "run" and not cases:
            cases = [("fail", "", "the program ran no test case")]
    elif status != "notrun":
        cases = [(kind.lower(), what.strip(), why) for kind, what, why in SCRIPT_LINE.findall(output)]
        cases += printed_cases(output)
    if status == "fail" and not any(kind == "fail" for kind, _, _ in cases):
        reason = test.find("failure")
        text = reason.get("message") if reason is not None else None
        cases.append(("fail", "", text or "the program failed"))
    if status in ("notrun", "disabled"):
        skipped = test.find("skipped")
        text = (skipped.get("message") if skipped is not None else None) or "not run"
        chosen = text.startswith("SKIP_")
        cases = cases or [("skip" if chosen else "fail", "", text)]
    for kind, what, why in cases or [("pass", "", "")]:
        yield kind, (name + ": " + what if what else name), why


def labels_of(folder):
    """Returns the labels of each entry of ctest in a build folder."""
    with open(os.path.join(folder, "tests.json")) as file:
        tests = json.load(file)["tests"]
    return {
        test["name"]: [label for p in test.get("properties", []) if p["name"] == "LABELS" for label in p["value"]]
        for test in tests
    }


def add(stage, folder, tally):
    junit = os.path.join(folder, "junit.xml")
    tests = list(xml.parse(junit).getroot().iter("testcase")) if os.path.exists(junit) else []
    known = labels_of(folder)
    rows = [["label", stage, label, "", ""] for label in sorted({l for ls in known.values() for l in ls})]
    if not tests:
        rows.append(["fail", stage, "", stage, "ran no test"])
    for test in tests:
        labels = ",".join(known.get(test.get("name"), []))
        for kind, name, why in cases_of(test, os.path.join(folder, "test_results")):
            rows.append([kind, stage, labels, name, " ".join((why or "").split())])
    with open(tally, "a") as out:
        out.writelines("\t".join(row) + "\n" for row in rows)


def read(tally):
    with open(tally) as lines:
        return [line.rstrip("\n").split("\t") for line in lines]


def labels(tally, full):
    rows = read(tally)
    wanted = {row[2] for row in rows if row[0] == "label"} - (set() if full == "1" else {"full"})
    ran = {label for row in rows if row[0] in ("pass", "fail") for label in row[2].split(",")}
    with open(tally, "a") as out:
        for label in sorted(wanted - ran):
            out.write("fail\tlabels\t\t%s\ta label that ran nothing\n" % label)


def report(tally):
    rows = read(tally)
    for kind, title in (("skip", "Skipped"), ("fail", "Failed")):
        chosen = [row for row in rows if row[0] == kind]
        if chosen:
            print("\n%s:" % title)
        for _, stage, _, name, why in chosen:
            print("  [%s] %s: %s" % (stage, name, why))
    passed = sum(row[0] == "pass" for row in rows)
    failed = sum(row[0] == "fail" for row in rows)
    print("\n%d passed, %d failed" % (passed, failed))
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    command, arguments = sys.argv[1], sys.argv[2:]
    sys.exit({"add": add, "labels": labels, "report": report}[command](*arguments))
