#!/usr/bin/env python3
"""Compares the failed checks of a quick report (report.json) with those in tests/report.txt.

    scripts/check_report.py REPORT.json [--renew]

Each line of tests/report.txt is a check that is known to fail: paper, figure and description. Exits with 1 if another check
fails, or if one of these passes; --renew writes the file.
"""

import json
import pathlib
import sys

KNOWN = pathlib.Path(__file__).resolve().parent.parent / "tests/report.txt"


def failing(report):
    """Yields the failed checks, each with the measured value."""
    for figure in report["figures"]:
        for check in figure.get("outcome", figure).get("checks", []):
            if not check["holds"]:
                yield f"{figure['paper']} {figure['figure']}: {check['what']}", check["seen"]


def main():
    report = json.loads(pathlib.Path(sys.argv[1]).read_text())
    if not report["settings"]["quick"]:
        sys.exit(f"{sys.argv[1]} is a full report; run `make check-report`, which makes a quick one")
    failed = dict(failing(report))
    if "--renew" in sys.argv[2:]:
        KNOWN.write_text("".join(f"{check}\n" for check in failed))
        return
    known = KNOWN.read_text().splitlines()
    new = [f"fails, and is not in tests/report.txt: {check}: {seen}" for check, seen in failed.items() if check not in known]
    remedy = "run `make check-report RENEW=1`"
    passing = [f"passes, but is in tests/report.txt; {remedy}: {check}" for check in known if check not in failed]
    print("\n".join(new + passing) or f"all checks pass except the {len(known)} in tests/report.txt")
    sys.exit(1 if new or passing else 0)


if __name__ == "__main__":
    main()
