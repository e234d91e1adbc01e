"""Writes the list of a release's parts as CycloneDX 1.5: the packages and archives themselves, and the libraries that they
depend on or have linked in (LINKED). Versions of libraries are those of the file "versions" beside a package (of the
tree in which it answered), of share/licenses/versions in an archive, or of this system; licences are those of this
system. An archive with weft-cuda.so names the CUDA runtime that is linked into it, also into the package weft-cuda for
the same processor. The same files on the same system give the same bytes.
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
BACKEND = "bin/weft-cuda.so"  # in an archive
PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}  # of packages, and of archives
LATE = {"libllhttp-dev": "MIT", "libyyjson-dev": "MIT"}  # of Debian 13, below .deps/


def field(deb, name):
    return subprocess.run(["dpkg-deb", "-f", deb, name], check=True, capture_output=True, text=True).stdout.strip()


def libraries(depends):
    """The first alternative of each dependency, without versions; packages of this release are no libraries."""
    names = (re.split(r"[ (:|]", part.strip(), maxsplit=1)[0] for part in depends.split(","))
    return {name for name in names if name and not name.startswith("weft")}


def listed(text):
    """Versions by package, of lines "NAME[:ARCHITECTURE] VERSION"; that of the CUDA runtime has more words."""
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


def text_of_versions(path):
    """share/licenses/versions of an archive, or None; and whether the archive has BACKEND."""
    with tarfile.open(path) as archive:
        names = archive.getnames()
        name = next((name for name in names if name.endswith("share/licenses/versions")), None)
        text = archive.extractfile(name).read().decode() if name else None
        return text, any(name.endswith("/" + BACKEND) for name in names)


def versions_in(path):
    text, _ = text_of_versions(path)
    return installed() if text is None else listed(text)


def cuda_runtime(path):
    """The part that is the CUDA runtime in an archive's BACKEND (packaging/setup/cuda-runtime); None without BACKEND."""
    text, has_backend = text_of_versions(path)
    if not has_backend:
        return None
    named = [line.split() for line in (text or "").splitlines() if len(line.split()) > 2]
    if len(named) != 1:
        sys.exit(f"sbom: {path} has {BACKEND}, but share/licenses/versions names {len(named)} CUDA runtimes")
    package, version, origin, *source = named[0]
    part = {"type": "library", "name": package, "version": version, "bom-ref": f"{package}@{version}",
            "supplier": {"name": "NVIDIA"}, "licenses": [{"license": {"name": "NVIDIA CUDA Toolkit EULA"}}],
            "purl": f"pkg:{origin}/{package}@{version}"}
    return part | ({"properties": [{"name": "weft:source-package", "value": source[0]}]} if source else {})


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
        name = archive_name(path)
        versions = versions_in(path)
        return {"name": name, "version": version, "bom-ref": name} | part, {reference(p, versions) for p in (*LINKED, *LATE)}
    name = field(path, "Package")
    versions = versions_beside(path)
    names = libraries(field(path, "Depends") + "," + field(path, "Pre-Depends"))
    own = {"name": name, "version": field(path, "Version")}
    own |= {"bom-ref": f"{name}-{own['version']}-{field(path, 'Architecture')}"}
    return own | part, {reference(p, versions) for p in names}


def archive_name(path):
    return os.path.basename(path).removesuffix(".tar.gz")


def archive_beside(path, version):
    """Returns the name of the archive whose BACKEND a package holds, or None."""
    if field(path, "Package") != "weft-cuda":
        return None
    return f"weft-{version}-linux-{PROCESSORS[field(path, 'Architecture')]}"


def main(version, files):
    date = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    runtimes = {archive_name(path): cuda_runtime(path) for path in files if not path.endswith(".deb")}
    packages, needed, linked = [], {}, {}
    for path in sorted(files):
        part, names = own_part(path, version)
        archive = archive_beside(path, version) if path.endswith(".deb") else archive_name(path)
        runtime = runtimes.get(archive)
        if path.endswith(".deb") and archive and not runtime:
            sys.exit(f"sbom: the CUDA runtime in {path} is unknown: there is no {archive}.tar.gz with {BACKEND}")
        if runtime:
            linked[runtime["bom-ref"]] = runtime
            names.add(runtime["bom-ref"])
        packages.append(part)
        needed[part["bom-ref"]] = names
    refs = set().union(*needed.values())
    parts = packages + [linked.get(ref) or library(ref) for ref in sorted(refs)]
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
