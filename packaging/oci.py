"""Makes a container image (OCI layout, in a tar file) without a container engine: one layer with the root file system in
ROOT, and the programs of a release's archive below /usr/local. The same input gives the same bytes.
usage: oci.py VERSION ARCHIVE.tar.gz ROOT.tar IMAGE.tar
Load it with `podman load -i IMAGE.tar`, or `skopeo copy oci-archive:IMAGE.tar ...`. SOURCE_DATE_EPOCH is its date."""
import datetime
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile

MEDIA = "application/vnd.oci.image."
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}
USER = "65532:65532"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def encoded(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def tar_of(members, epoch):
    """A tar file of pairs (header, bytes), sorted by name, all of one time; owners are numbers."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for header, data in sorted(members, key=lambda member: member[0].name):
            header.uname = header.gname = ""
            header.mtime = epoch
            tar.addfile(header, io.BytesIO(data))
    return out.getvalue()


def members_of(path, rename):
    with tarfile.open(path) as tar:
        for member in tar:
            name = rename(member.name)
            if not name:
                continue
            data = tar.extractfile(member).read() if member.isreg() else b""
            if member.islnk():
                member.linkname = rename(member.linkname)
            member.name = name
            yield member, data


def in_root(name):
    return name.removeprefix("./").strip("/").removeprefix(".")


def in_local(name):
    below = name.partition("/")[2]
    return f"usr/local/{below}" if below else ""


def file(name, data):
    header = tarfile.TarInfo(name)
    header.size = len(data)
    return header, data


def layer(members, epoch):
    """The layer's compressed bytes, and the digest of the uncompressed ones."""
    tar = tar_of(members, epoch)
    return gzip.compress(tar, 9, mtime=0), digest(tar)


def config(version, processor, epoch, layers):
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created, "architecture": processor, "os": "linux",
        "config": {
            "User": USER, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "XDG_RUNTIME_DIR=/var/lib"], "ExposedPorts": {"8080/tcp": {}},
            "Entrypoint": ["/usr/local/bin/weftd", "--listen", "0.0.0.0:8080"],
            "Labels": {"org.opencontainers.image.version": version, "org.opencontainers.image.licenses": "Apache-2.0"},
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id for _, diff_id in layers]},
        "history": [{"created": created, "created_by": "weft packaging/oci.py"} for _ in layers],
    }


def layout(version, processor, epoch, layers):
    """The files of an OCI layout."""
    files = {"oci-layout": encoded({"imageLayoutVersion": "1.0.0"})}

    def blob(kind, data):
        name = digest(data)
        files["blobs/" + name.replace(":", "/")] = data
        return {"mediaType": MEDIA + kind, "digest": name, "size": len(data)}

    manifest = encoded({
        "schemaVersion": 2, "mediaType": MEDIA + "manifest.v1+json",
        "config": blob("config.v1+json", encoded(config(version, processor, epoch, layers))),
        "layers": [blob("layer.v1.tar+gzip", data) for data, _ in layers],
    })
    entry = blob("manifest.v1+json", manifest) | {
        "platform": {"architecture": processor, "os": "linux"},
        "annotations": {"org.opencontainers.image.ref.name": f"weft:{version}"},
    }
    files["index.json"] = encoded({"schemaVersion": 2, "mediaType": MEDIA + "index.v1+json", "manifests": [entry]})
    return files


def main(version, archive, root, image):
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    processor = PROCESSORS[archive.removesuffix(".tar.gz").rpartition("-")[2]]
    layers = [layer(list(members_of(root, in_root)), epoch), layer(list(members_of(archive, in_local)), epoch)]
    files = layout(version, processor, epoch, layers)
    with open(image, "wb") as out:
        out.write(tar_of([file(name, data) for name, data in files.items()], epoch))


if __name__ == "__main__":
    main(*sys.argv[1:])
