#!/usr/bin/env python3
"""Writes what the library of a target is made of, as CycloneDX 1.6: the crates that are linked, by the sums of Cargo.lock, the standard library of Rust,
and the tables that come from ggml.

usage: sbom.py TRIPLE < METADATA > SBOM.json
  METADATA            what `cargo metadata --locked --filter-platform TRIPLE` prints
  SOURCE_DATE_EPOCH   the date of the document, in seconds since 1970
"""

import datetime
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path


def sums(lock):
    """The SHA-256 of every crate that a registry gave, by name and version."""
    pattern = r'name = "(.*)"\nversion = "(.*)"\nsource = "registry\+.*"\nchecksum = "(.*)"'
    return {(name, version): digest for name, version, digest in re.findall(pattern, lock)}


def graph(metadata):
    """The package of the library, and what every package links, by their ids: no crates that are only compiled or tested with."""
    packages = {package["id"]: package for package in metadata["packages"]}
    macros = {id for id, package in packages.items() if any("proc-macro" in target["kind"] for target in package["targets"])}
    links = {}
    for node in metadata["resolve"]["nodes"]:
        normal = [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
        links[node["id"]] = sorted(set(normal) - macros)
    own = next(package for package in packages.values() if package["name"] == "segno")
    reached, open_ids = set(), [own["id"]]
    while open_ids:
        for id in links[open_ids.pop()]:
            if id not in reached:
                reached.add(id)
                open_ids.append(id)
    return own, [packages[id] for id in sorted(reached)], links


def reference(package):
    kind = "cargo" if package["source"] else "generic"
    return f"pkg:{kind}/{package['name']}@{package['version']}"


def component(package, digests):
    licence = package["license"].replace("/", " OR ")
    return {
        "type": "library",
        "bom-ref": reference(package),
        "name": package["name"],
        "version": package["version"],
        "hashes": [{"alg": "SHA-256", "content": digests[package["name"], package["version"]]}],
        "licenses": [{"expression": licence}],
        "purl": reference(package),
    }


def beside():
    """What is linked and no crate."""
    compiler = subprocess.run(["rustc", "--version", "--verbose"], check=True, capture_output=True, text=True).stdout
    release = re.search(r"^release: (.*)$", compiler, re.M).group(1)
    std = f"pkg:github/rust-lang/rust@{release}"
    return [
        {"type": "library", "bom-ref": std, "name": "std", "version": release, "licenses": [{"expression": "MIT OR Apache-2.0"}], "purl": std,
         "description": "the standard library of Rust"},
        {"type": "data", "bom-ref": "ggml-grids", "name": "ggml", "licenses": [{"expression": "MIT"}], "description": "the numbers of the i-quant grids"},
    ]


def main():
    triple = sys.argv[1]
    own, linked, links = graph(json.load(sys.stdin))
    digests = sums(Path(own["manifest_path"]).with_name("Cargo.lock").read_text())
    components = beside() + [component(package, digests) for package in linked]
    names = {package["id"]: reference(package) for package in linked + [own]}
    depends = [{"ref": names[id], "dependsOn": [names[other] for other in links[id] if other in names]} for id in sorted(names)]
    depends[[entry["ref"] for entry in depends].index(reference(own))]["dependsOn"] += [entry["bom-ref"] for entry in beside()]
    date = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, f"{reference(own)}?target={triple}&date={os.environ['SOURCE_DATE_EPOCH']}").urn,
        "version": 1,
        "metadata": {
            "timestamp": date.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {"type": "library", "bom-ref": reference(own), "name": own["name"], "version": own["version"],
                          "licenses": [{"expression": own["license"]}], "purl": reference(own)},
            "properties": [{"name": "segno:target", "value": triple}],
        },
        "components": sorted(components, key=lambda entry: entry["bom-ref"]),
        "dependencies": sorted(depends, key=lambda entry: entry["ref"]),
    }
    json.dump(document, sys.stdout, indent=1)
    print()


main()
