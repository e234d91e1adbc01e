"""Headers of published model files (tests/data/headers): each is accepted, or refused with the right reason; and with
another name of the architecture, the own one is found and tried."""
import os
import pathlib
import subprocess
import tempfile

from header_file import read, write
from weftd import main, program

FOLDER = pathlib.Path(os.environ["WEFT_SOURCE"]) / "tests" / "data" / "headers"


def info(*args):
    r = subprocess.run([program("weft-gguf"), "info", *map(str, args)], capture_output=True, text=True, timeout=60)
    return r.returncode, r.stdout, r.stderr


def each_header():
    files = sorted(FOLDER.glob("*.txt"))
    assert len(files) >= 50, files
    for file in files:
        source, refused, keys, tensors = read(file)
        assert source.startswith("https://"), file
        yield file.stem, refused, keys, tensors


def test_each_is_accepted_or_refused_with_its_reason():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.gguf"
        for name, refused, keys, tensors in each_header():
            write(path, keys, tensors)
            code, out, err = info("--ops", "reference", path)
            if refused:
                assert code == 1 and refused in err, (name, code, err)
            else:
                assert code == 0 and out, (name, err)


def test_another_name_is_traced_back_and_tried():
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "x.gguf"
        for name, refused, keys, tensors in each_header():
            if refused:
                continue
            arch = keys[0][2]
            renamed = [(key.replace(arch + ".", "unheard."), kind, value) for key, kind, value in keys[1:]]
            write(path, keys, tensors)
            own = info("--ops", "reference", path)[1]
            write(path, [("general.architecture", "str", "unheard"), *renamed], tensors)
            found = info("--nearest", path)[1]
            others = found.count("\n  has all tensors of the file, in these shapes\n")  # three are printed, and more may fit
            assert others == 3 or f"\n{arch}\n  has all tensors of the file" in found, (name, found)
            code, out, err = info("--ops", "reference", "--override-kv", f"general.architecture=str:{arch}", path)
            assert code == 0 and out == own, (name, err)


main(globals())
