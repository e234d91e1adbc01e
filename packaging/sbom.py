"""Writes the list of a release's parts as CycloneDX 1.5: the packages themselves, and the libraries that they depend on with
the versions and licences that this system has of them. The same packages on the same system give the same bytes.
usage: sbom.py VERSION PACKAGE.deb..."""
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid

SPDX = {  # names in Debian's copyright files: identifiers of SPDX
    "Apache-2.0": "Apache-2.0", "BSD-2-clause": "BSD-2-Clause", "BSD-3-clause": "BSD-3-Clause", "Expat": "MIT", "MIT": "MIT",
    "ISC": "ISC", "Zlib": "Zlib", "GPL-2": "GPL-2.0-only", "GPL-2+": "GPL-2.0-or-later", "GPL-3": "GPL-3.0-only",
    "GPL-3+": "GPL-3.0-or-later", "LGPL-2.1": "LGPL-2.1-only", "LGPL-2.1+": "LGPL-2.1-or-later", "LGPL-3": "LGPL-3.0-only",
    "LGPL-3+": "LGPL-3.0-or-later", "MPL-2.0": "MPL-2.0",
}


def field(deb, name):
    return subprocess.run(["dpkg-deb", "-f", deb, name], check=True, capture_output=True, text=True).stdout.strip()


def libraries(depends):
    """The first alternative of each dependency, without versions; packages of this release are no libraries."""
    names = (re.split(r"[ (:|]", part.strip(), maxsplit=1)[0] for part in depends.split(","))
    return {name for name in names if name and not name.startswith("weft")}


def installed_version(package):
    done = subprocess.run(["dpkg-query", "-W", "-f", "${Version}\n", package], capture_output=True, text=True)
    return done.stdout.split("\n")[0] if done.returncode == 0 else None


def licences(package):
    """The licences that the package's copyright file names, if that is in Debian's machine-readable form."""
    try:
        with open(f"/usr/share/doc/{package}/copyright", encoding="utf-8", errors="replace") as text:
            names = {line.split(":", 1)[1].strip() for line in text if line.startswith("License:")}
    except OSError:
        return []
    return [{"license": {"id": SPDX[n]} if n in SPDX else {"name": n}} for n in sorted(names) if n]


def library(package):
    version = installed_version(package)
    part = {"type": "library", "name": package, "bom-ref": package, "licenses": licences(package)}
    if version:
        part |= {"version": version, "purl": f"pkg:deb/debian/{package}@{version}"}
    return part


def own_package(deb):
    with open(deb, "rb") as data:
        digest = hashlib.sha256(data.read()).hexdigest()
    name, version = field(deb, "Package"), field(deb, "Version")
    return {"type": "application", "name": name, "version": version, "bom-ref": f"{name}-{field(deb, 'Architecture')}",
            "hashes": [{"alg": "SHA-256", "content": digest}], "licenses": [{"license": {"id": "Apache-2.0"}}]}


def main(version, debs):
    date = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    packages, needed = [], {}
    for deb in sorted(debs):
        packages.append(own_package(deb))
        needed[packages[-1]["bom-ref"]] = libraries(field(deb, "Depends") + "," + field(deb, "Pre-Depends"))
    parts = packages + [library(name) for name in sorted(set().union(*needed.values()))]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(parts, sort_keys=True))
    json.dump({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "serialNumber": f"urn:uuid:{serial}", "version": 1,
        "metadata": {"timestamp": date.strftime("%Y-%m-%dT%H:%M:%SZ"),
                     "component": {"type": "application", "name": "weft", "version": version, "bom-ref": "weft"}},
        "components": parts,
        "dependencies": [{"ref": "weft", "dependsOn": [p["bom-ref"] for p in packages]}]
        + [{"ref": ref, "dependsOn": sorted(names)} for ref, names in needed.items()],
    }, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
