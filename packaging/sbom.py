"""Writes the list of a release's parts as CycloneDX 1.5: the packages and archives themselves, and the libraries that they
depend on or have linked in (LINKED). Versions of libraries are those of the file "versions" beside a package (of the
tree in which it answered), of share/licenses/versions in an archive, or of this system; licences are those of this
system. The same files on the same system give the same bytes.
usage: sbom.py VERSION FILE...      FILE: a package (.deb) or an archive of programs
       sbom.py --linked             prints the packages of what is linked into the archive's programs"""
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
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


def listed(text):
    """Versions by package, of lines "NAME[:ARCHITECTURE] VERSION"."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0].partition(":")[0]: pair[1] for pair in pairs if len(pair) == 2}


def installed():
    return listed(subprocess.run(["dpkg-query", "-W"], check=True, capture_output=True, text=True).stdout)


def versions_beside(path):
    file = os.path.join(os.path.dirname(path), "versions")
    if not os.path.exists(file):
        return installed()
    with open(file, encoding="utf-8") as text:
        return listed(text.read())


def versions_in(path):
    with tarfile.open(path) as archive:
        name = next((name for name in archive.getnames() if name.endswith("share/licenses/versions")), None)
        return listed(archive.extractfile(name).read().decode()) if name else installed()


def licences(package):
    """The licences that the package's copyright file names, if that is in Debian's machine-readable form."""
    try:
        with open(f"/usr/share/doc/{package}/copyright", encoding="utf-8", errors="replace") as text:
            names = {line.split(":", 1)[1].strip() for line in text if line.startswith("License:")}
    except OSError:
        return []
    return [{"license": {"id": SPDX[n]} if n in SPDX else {"name": n}} for n in sorted(names) if n]


def reference(package, versions):
    return f"{package}@{versions[package]}" if package in versions else package


def library(ref):
    package, _, version = ref.partition("@")
    names = [{"license": {"id": LATE[package]}}] if package in LATE else licences(package)
    part = {"type": "library", "name": package, "bom-ref": ref, "licenses": names}
    if version:
        distribution = "ubuntu" if "ubuntu" in version else "debian"
        part |= {"version": version, "purl": f"pkg:deb/{distribution}/{package}@{version}"}
    return part


def sha256(path):
    with open(path, "rb") as data:
        return [{"alg": "SHA-256", "content": hashlib.sha256(data.read()).hexdigest()}]


def own_part(path, version):
    """A file of the release, and references to the libraries that it uses or contains."""
    part = {"type": "application", "hashes": sha256(path), "licenses": [{"license": {"id": "Apache-2.0"}}]}
    if not path.endswith(".deb"):
        name = os.path.basename(path).removesuffix(".tar.gz")
        versions = versions_in(path)
        return {"name": name, "version": version, "bom-ref": name} | part, {reference(p, versions) for p in (*LINKED, *LATE)}
    name = field(path, "Package")
    versions = versions_beside(path)
    names = libraries(field(path, "Depends") + "," + field(path, "Pre-Depends"))
    own = {"name": name, "version": field(path, "Version")}
    own |= {"bom-ref": f"{name}-{own['version']}-{field(path, 'Architecture')}"}
    return own | part, {reference(p, versions) for p in names}


def main(version, files):
    date = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    packages, needed = [], {}
    for path in sorted(files):
        part, names = own_part(path, version)
        packages.append(part)
        needed[part["bom-ref"]] = names
    parts = packages + [library(ref) for ref in sorted(set().union(*needed.values()))]
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
