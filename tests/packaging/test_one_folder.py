"""./check and ./quickstart in one folder, in both orders, as users run them: each leaves a build in which the other finds
its targets. The scripts and Meson are the real ones; ninja compiles nothing (-n), and of "meson test" only the targets
that tests need are asked for. Argument: the source folder. The part with an NVIDIA card needs nvcc, and is left out
without it."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

# In place of ninja: makes build.ninja anew where that is due, writes down the targets, and says what it would do.
NINJA = """#!/bin/sh
[ "$1 $2" = "-C build" ] || exec REAL "$@"
echo "$0 $*" | sed "s,.*/,," >>"$CALLS"
REAL -C build build.ninja && exec REAL -n "$@"
"""
# In place of Meson: "meson test -C build --logbase NAME ..." asks for all targets, and one test has passed. A setup writes
# down where it is.
MESON = """#!/bin/sh
[ "$1" != setup ] || echo "meson setup $2" >>"$CALLS"
[ "$1" = test ] || exec REAL "$@"
ninja -C "$3" all meson-test-prereq || exit 1
mkdir -p "$3/meson-logs"
echo '<testsuites><testsuite name="a"><testcase name="b"/></testsuite></testsuites>' >"$3/meson-logs/$5.junit.xml"
"""
NOTHING = "#!/bin/sh\n"
ALL = "ninja -C build all meson-test-prereq"
PROGRAMS = "ninja -C build weftd weftctl"
SETUP = "meson setup build"


def write_script(path, text):
    path.write_text(text)
    path.chmod(0o755)


def copy_tree(source, tree):
    """The files of the source as they are now, with scripts that do nothing where packages and lines do not matter."""
    listed = subprocess.run(["git", "-C", source, "ls-files", "-zco", "--exclude-standard"], capture_output=True)
    if listed.returncode != 0:
        print("skipped: the source is no git repository")
        sys.exit(77)
    for name in listed.stdout.decode().split("\0"):
        if name and (source / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, tree / name)
    if (source / ".deps").exists():
        (tree / ".deps").symlink_to(source / ".deps")
    for name in ("packaging/setup/install-deps", "tests/lint/measure.py"):
        write_script(tree / name, NOTHING)


def check_orders(source, folder):
    tools, tree, calls = folder / "tools", folder / "tree", folder / "calls"
    tools.mkdir()
    for name, text in (("ninja", NINJA), ("meson", MESON)):
        write_script(tools / name, text.replace("REAL", shutil.which(name)))
    copy_tree(source, tree)

    def asked(*command, card=""):
        """What a script that succeeds asks Meson and ninja for, on a machine with this card."""
        write_script(tools / "nvidia-smi", f"#!/bin/sh\necho {card}\n" if card else "#!/bin/sh\nexit 9\n")
        calls.write_text("")
        env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "CALLS": str(calls)}
        done = subprocess.run(command, cwd=tree, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}, card {card}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return calls.read_text().splitlines()

    check, quickstart = ["./check"], ["./quickstart", "--build"]
    assert asked(*check) == [SETUP, ALL]
    assert asked(*quickstart) == [PROGRAMS]
    if shutil.which("nvcc", path=os.environ["PATH"] + ":/usr/local/cuda/bin:/opt/cuda/bin"):
        # The card has come after the build.
        assert asked(*quickstart, card="9.0") == [SETUP, PROGRAMS + " weft-cuda.so"]
        assert asked(*check, card="9.0") == [ALL]
        assert asked(*quickstart, card="9.0") == [PROGRAMS + " weft-cuda.so"]

    shutil.rmtree(tree / "build")
    assert asked(*quickstart) == [SETUP, PROGRAMS]
    assert asked(*check) == [ALL]
    assert asked(*quickstart) == [PROGRAMS]


def main(source):
    with tempfile.TemporaryDirectory() as where:
        check_orders(source, pathlib.Path(where))
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve()))
