"""Feeds tally.py what ctest and GoogleTest write, and sees what it counts."""

import contextlib
import io
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import tally  # noqa: E402

GTEST = """<testsuites><testsuite name="A">
<testcase name="Passes" status="run" result="completed" classname="A"/>
<testcase name="Skips" status="run" result="skipped" classname="A"><skipped message="a.cc:3&#x0A;no GPU here"/></testcase>
<testcase name="Fails" status="run" result="completed" classname="A"><failure message="a.cc:9&#x0A;1 != 2"/></testcase>
<testcase name="DISABLED_Off" status="notrun" result="suppressed" classname="A"/>
</testsuite></testsuites>"""


def case(name, status, output="", inner=""):
    return '<testcase name="%s" status="%s">%s<system-out>%s</system-out></testcase>' % (name, status, inner, output)


# What ran: (ctest's entry, GoogleTest's file or None, the outcomes wanted).
CASES = [
    (case("gtest", "fail"), GTEST, ["pass gtest: A.Passes ", "skip gtest: A.Skips no GPU here",
                                    "fail gtest: A.Fails a.cc:9", "skip gtest: A.DISABLED_Off disabled in the source"]),
    (case("empty", "run"), "<testsuites/>", ["fail empty the program ran no test case"]),
    (case("leaks", "fail"), GTEST.replace("<failure", "<note").replace("</failure>", "</note>"),
     ["pass leaks: A.Passes ", "skip leaks: A.Skips no GPU here", "pass leaks: A.Fails ",
      "skip leaks: A.DISABLED_Off disabled in the source", "fail leaks the program failed"]),
    (case("crash", "fail", "[ RUN      ] A.One\n[       OK ] A.One (0 ms)\n[ RUN      ] A.Two/3\nboom"), None,
     ["pass crash: A.One ", "fail crash: A.Two/3 the program ended here"]),
    (case("script", "fail", "PASS rule a\nnoise\nFAIL rule b: 3 violations\nSKIP rule c: no tool"), None,
     ["pass script: rule a ", "fail script: rule b 3 violations", "skip script: rule c no tool"]),
    (case("hidden", "fail", "PASS rule a"), None, ["pass hidden: rule a ", "fail hidden the program failed"]),
    (case("plain", "run"), None, ["pass plain "]),
    (case("missing", "notrun", inner='<skipped message="Unable to find executable"/>'), None,
     ["fail missing Unable to find executable"]),
    (case("code77", "notrun", inner='<skipped message="SKIP_RETURN_CODE=77"/>'), None, ["skip code77 SKIP_RETURN_CODE=77"]),
]


def printed(function, *arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = function(*arguments)
    return code, out.getvalue()


def verdict(name, wanted, found):
    print("PASS " + name if wanted == found else "FAIL %s: wanted %r, found %r" % (name, wanted, found), flush=True)
    return wanted == found


def main():
    passed = True
    for entry, gtest, wanted in CASES:
        with tempfile.TemporaryDirectory() as folder:
            name = entry.split('"')[1]
            os.mkdir(os.path.join(folder, "test_results"))
            with open(os.path.join(folder, "junit.xml"), "w", encoding="utf-8") as file:
                file.write("<testsuite>%s</testsuite>" % entry)
            if gtest:
                with open(os.path.join(folder, "test_results", name + ".xml"), "w", encoding="utf-8") as file:
                    file.write(gtest)
            labels = [{"name": "LABELS", "value": ["core", "full"]}]
            with open(os.path.join(folder, "tests.json"), "w", encoding="utf-8") as file:
                json.dump({"tests": [{"name": name, "properties": labels}, {"name": "x", "properties": [
                    {"name": "LABELS", "value": ["idle"]}]}]}, file)
            path = os.path.join(folder, "tally")
            tally.add("stage", folder, path)
            rows = tally.read(path)
            found = ["%s %s %s" % (row[0], row[3], row[4]) for row in rows if row[0] != "label"]
            passed &= verdict("counts of " + name, wanted, found)
            if name == "plain":
                passed &= verdict("last line", (0, "\n1 passed, 0 failed\n"), printed(tally.report, path))
                tally.labels(path, "0")
                code, text = printed(tally.report, path)
                passed &= verdict("a label that ran nothing", (1, ["1 passed, 1 failed"], 1),
                                  (code, text.split("\n")[-2:-1], text.count("idle: a label that ran nothing")))
            if name == "script":
                code, text = printed(tally.report, path)
                passed &= verdict("skips are listed, not counted", (1, True, "1 passed, 1 failed"),
                                  (code, "script: rule c: no tool" in text, text.split("\n")[-2]))
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "tests.json"), "w", encoding="utf-8") as file:
            file.write('{"tests": []}')
        path = os.path.join(folder, "tally")
        tally.add("stage", folder, path)
        passed &= verdict("a stage that ran nothing", (1, "0 passed, 1 failed"),
                          (lambda result: (result[0], result[1].split("\n")[-2]))(printed(tally.report, path)))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
