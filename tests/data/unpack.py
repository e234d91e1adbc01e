#!/usr/bin/env python3
"""Unpacks the archives of tests/data into a folder and makes the models of golden/ and golden-vision/ there.

usage: unpack.py MAKE_MODEL OUT STAMP ARCHIVE...

OUT gets the folders golden/, models/, templates/, vocab/ and formats/, which README.md describes. STAMP is written
when all is there and the checksum of every model is right."""
import hashlib
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile


def make(make_model, golden, entry):
    """Writes the files of one entry of a manifest.json: headers, zeros behind them, then the weights."""
    paths = []
    for file in entry["files"]:
        path = golden / (file["name"] + ".gguf")
        with open(path, "wb") as out:
            out.write((golden / (file["name"] + ".head")).read_bytes())
            out.truncate(file["bytes"])
        paths.append(path)
    subprocess.run([make_model, golden / (entry["draws"] + ".draws"), *paths], check=True)
    for path, file in zip(paths, entry["files"]):
        got = hashlib.sha256(path.read_bytes()).hexdigest()
        if got != file["sha256"]:
            sys.exit(f"{path}: its checksum is {got}, not {file['sha256']}: this machine computes other weights "
                     "than those that the expected values belong to")


def main(make_model, out, stamp, *archives):
    out = pathlib.Path(out)
    for archive in archives:
        with tarfile.open(archive) as tar:
            shutil.rmtree(out / pathlib.Path(archive).name.split(".")[0], ignore_errors=True)
            tar.extractall(out)
    for golden in out / "golden", out / "golden-vision":
        for entry in json.loads((golden / "manifest.json").read_text()):
            make(make_model, golden, entry)
        for path in [golden / "manifest.json", *golden.glob("*.head"), *golden.glob("*.draws")]:
            path.unlink()
    pathlib.Path(stamp).touch()


main(*sys.argv[1:])
