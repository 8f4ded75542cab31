#!/usr/bin/env python3
"""Compares the checks of a quick report (results/report.json) that do not hold with tests/report.txt.

    scripts/check_report.py REPORT.json [--renew]

Each line of tests/report.txt is a check that is known to fail: the paper, the figure and what is checked. Exits with 1 if another
check fails, or one of these holds; --renew writes the file.
"""

import json
import pathlib
import sys

KNOWN = pathlib.Path(__file__).resolve().parent.parent / "tests/report.txt"


def failing(report):
    """Returns the checks that do not hold, a line each, with what was seen."""
    for figure in report["figures"]:
        for check in figure.get("outcome", figure).get("checks", []):
            if not check["holds"]:
                yield f"{figure['paper']} {figure['figure']}: {check['what']}", check["seen"]


def main():
    report = json.loads(pathlib.Path(sys.argv[1]).read_text())
    if not report["settings"]["quick"]:
        sys.exit(f"{sys.argv[1]} is a full report; run `make check-report`, which makes a quick one")
    now = dict(failing(report))
    if "--renew" in sys.argv[2:]:
        KNOWN.write_text("".join(f"{check}\n" for check in now))
        return
    known = KNOWN.read_text().splitlines()
    new = [f"does not hold any more: {check}: {seen}" for check, seen in now.items() if check not in known]
    held = [f"holds, and is listed in tests/report.txt as one that does not: {check}" for check in known if check not in now]
    print("\n".join(new + held) or f"all checks of the report hold, but for the {len(known)} of tests/report.txt")
    sys.exit(1 if new or held else 0)


if __name__ == "__main__":
    main()
