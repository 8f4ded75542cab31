#!/usr/bin/env python3
"""Prints the licences of everything that is linked into the program and the C library, with their texts.

    scripts/notices.py [> THIRD-PARTY]

Exits with 1 if a package has no licence text (`make lint` checks that). Needs the packages' sources, which `cargo fetch`
fetches if a build has not.
"""

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("understudy", "onepipe-c")
# Names of files with licence texts
LICENCE = re.compile(r"(licen[cs]e|copying|notice|unlicense|copyright)([-_.].*)?", re.IGNORECASE)
# The licence of a package whose archive has no text, with the authors that its manifest names
MIT = """MIT License

Copyright (c) {authors}

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation
files (the "Software"), to deal in the Software without restriction, including without limitation the rights to use, copy,
modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the Software
is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES
OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE
LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR
IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""


def metadata():
    target = subprocess.run(["rustc", "-vV"], capture_output=True, text=True, check=True).stdout
    target = re.search(r"^host: (.*)$", target, re.MULTILINE)[1]
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    return json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)


def without_tests():
    """Returns names and versions of the packages that a build has, without those that only features of tests bring."""
    command = ["cargo", "tree", "--locked", "--workspace", "--edges", "normal", "--prefix", "none", "--format", "{p}"]
    tree = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    return set(re.findall(r"^(\S+) v(\S+)", tree, re.MULTILINE))


def linked(graph):
    """Returns the packages of other projects that the programs link, sorted by name."""
    packages = {package["id"]: package for package in graph["packages"]}
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    own = set(graph["workspace_members"])
    found, open_ids = set(), [id for id in own if packages[id]["name"] in PROGRAMS]
    while open_ids:
        id = open_ids.pop()
        if id in found:
            continue
        found.add(id)
        for dependency in nodes[id]["deps"]:
            # What runs at build time, and what tests use, is not linked.
            is_macro = any("proc-macro" in target["kind"] for target in packages[dependency["pkg"]]["targets"])
            if not is_macro and any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                open_ids.append(dependency["pkg"])
    built = without_tests()
    others = (packages[id] for id in found - own)
    others = (package for package in others if (package["name"], package["version"]) in built)
    return sorted(others, key=lambda package: (package["name"], package["version"]))


def texts(package):
    """Returns the licence texts of a package; none if neither its archive nor its manifest determines them."""
    folder = Path(package["manifest_path"]).parent
    files = [path for path in folder.iterdir() if path.is_file() and LICENCE.fullmatch(path.name)]
    if files:
        return [path.read_text(errors="replace").strip() for path in sorted(files)]
    licence = package["license"] or ""
    if "Apache-2.0" in re.split(r" OR |/", licence):
        return [(ROOT / "LICENSE").read_text().strip()]
    if licence == "MIT" and (authors := ", ".join(package["authors"]) or package["repository"]):
        return [MIT.format(authors=authors)]
    return []


def main():
    packages = linked(metadata())
    users, bodies, missing = {}, {}, []
    for package in packages:
        own = texts(package)
        label = f"{package['name']} {package['version']}"
        if not own:
            missing.append(f"{label} ({package['license']}, {package['repository']})")
        for text in own:
            key = hashlib.sha256(" ".join(text.split()).encode()).digest()
            bodies.setdefault(key, text)
            users.setdefault(key, []).append(label)
    dpdk = Path("/usr/share/doc/libdpdk-dev/copyright")
    if not dpdk.exists():
        missing.append(f"DPDK ({dpdk} is missing)")
    if missing:
        print(f"no licence text: {', '.join(missing)}", file=sys.stderr)
        sys.exit(1)
    print("understudy is licensed under the Apache License, Version 2.0. It links these packages of other projects:\n")
    print("  Rust's standard library: MIT OR Apache-2.0")
    print("  DPDK, some inline functions of its headers: BSD-3-Clause")
    for package in packages:
        print(f"  {package['name']} {package['version']}: {package['license']}")
    print(f"\n{'-' * 100}\nRust's standard library:\n\n{(ROOT / 'LICENSE').read_text().strip()}")
    print(f"\n{'-' * 100}\nDPDK:\n\n{dpdk.read_text().strip()}")
    for key, text in bodies.items():
        print(f"\n{'-' * 100}\n{', '.join(users[key])}:\n\n{text}")


main()
