"""Writes the list of a release's parts as CycloneDX 1.5: the packages themselves, and the libraries that they depend on
with the versions and licences that this system has of them. The same packages on the same system give the same bytes.
The programs of an archive (FILE.tar.gz) have libraries linked in (LINKED).
usage: sbom.py VERSION FILE...      FILE: a package (.deb) or an archive of programs
       sbom.py --linked             prints the packages of what is linked into the archive's programs"""
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

# The Debian packages of what packaging/tarball links into the programs or puts beside them.
LINKED = ("libbsd-dev", "libcurl4-openssl-dev", "libedit-dev", "libgif-dev", "libjemalloc-dev", "libjpeg62-turbo-dev",
          "libmd-dev", "libncurses-dev", "libpcre2-dev", "libpng-dev", "libsqlite3-dev", "libssl-dev", "libutf8proc-dev",
          "libuv1-dev", "libwebp-dev", "libxxhash-dev", "libzstd-dev", "zlib1g-dev")
LATE = {"libllhttp-dev": "MIT", "libyyjson-dev": "MIT"}  # of Debian 13, below .deps/


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
    if package in LATE:
        return {"type": "library", "name": package, "bom-ref": package, "licenses": [{"license": {"id": LATE[package]}}]}
    part = {"type": "library", "name": package, "bom-ref": package, "licenses": licences(package)}
    if version:
        part |= {"version": version, "purl": f"pkg:deb/debian/{package}@{version}"}
    return part


def sha256(path):
    with open(path, "rb") as data:
        return [{"alg": "SHA-256", "content": hashlib.sha256(data.read()).hexdigest()}]


def own_part(path, version):
    """A file of the release, and the names of the libraries that it uses or contains."""
    part = {"type": "application", "hashes": sha256(path), "licenses": [{"license": {"id": "Apache-2.0"}}]}
    if not path.endswith(".deb"):
        name = os.path.basename(path).removesuffix(".tar.gz")
        return {"name": name, "version": version, "bom-ref": name} | part, {*LINKED, *LATE}
    name = field(path, "Package")
    names = libraries(field(path, "Depends") + "," + field(path, "Pre-Depends"))
    return {"name": name, "version": field(path, "Version"), "bom-ref": f"{name}-{field(path, 'Architecture')}"} | part, names


def main(version, files):
    date = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    packages, needed = [], {}
    for path in sorted(files):
        part, names = own_part(path, version)
        packages.append(part)
        needed[part["bom-ref"]] = names
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
    if sys.argv[1:] == ["--linked"]:
        print("\n".join(LINKED))
    else:
        main(sys.argv[1], sys.argv[2:])
