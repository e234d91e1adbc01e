"""What is written beside the programs, manual pages and completion, names what they know: no more, no less."""
import os
import pathlib
import re
import shutil
import subprocess

from weftd import Skip, main, program

SOURCE = pathlib.Path(__file__).parents[2]
PAGES = SOURCE / "docs/man"
CONF_PAGE = pathlib.Path(program("weftd")).parent / "docs/man/weft.conf.5"


def help_of(name):
    if not os.path.exists(program(name)):
        raise Skip(name + " is not built")
    return subprocess.run([program(name), "--help"], capture_output=True, text=True, check=True).stdout


def commands_of_page(name):
    return re.findall(r"^\.It Cm ([a-z-]+)", (PAGES / name).read_text(), re.M)


def commands_of_help(name):
    return re.findall(r"^  ([a-z]+)\b", help_of(name), re.M)


def test_pages_have_the_commands_of_the_programs():
    for name in ("weft-gguf", "weft-bench", "weftctl"):
        assert commands_of_page(name + ".1") == commands_of_help(name), name


def test_options_of_the_commands_are_on_the_page():
    page = (PAGES / "weftctl.1").read_text()
    for command in ("chat", "launch", "pull", "models", "rm", "key"):
        text = subprocess.run([program("weftctl"), command, "--help"], capture_output=True, text=True, check=True).stdout
        for option in set(re.findall(r"--([a-z][a-z-]+)", text)):
            assert re.search(rf"Fl (-[a-z]+ \| )*-{option}\b", page), (command, option)


def test_keys_of_the_page_are_those_of_the_daemon():
    keys = re.findall(r"^  --([a-z-]+) \S+", help_of("weftd").split("\n[model]\n")[1], re.M)
    assert len(keys) > 40
    assert re.findall(r"^\.It Cm ([a-z-]+)", CONF_PAGE.read_text(), re.M) == keys


def test_options_of_the_daemons_page_are_its_own():
    known = set(re.findall(r"--([a-z-]+)", help_of("weftd")))
    page = (PAGES / "weftd.8").read_text()
    for option in re.findall(r"^\.It Fl -([a-z-]+)", page, re.M) + re.findall(r"^weftd.* --([a-z-]+)", page, re.M):
        assert option in known, option


def test_what_cannot_be_written_is_an_error():
    model = str(pathlib.Path(os.environ["WEFT_DATA"]) / "models" / "stories260K-f32.gguf")
    for args in (("weftd", "--help"), ("weftd", "--version"), ("weftd", "--print-config"), ("weftctl", "--help"), ("weftctl", "pull", "--help"),
                 ("weft-gguf", "info", model), ("weft-gguf", "info", "--json", model), ("weft-bench", "engine", "--help"), ("weft-sim", "--help")):
        if args[0] == "weft-sim" and not os.path.exists(program(args[0])):
            continue
        with open("/dev/full", "w") as full:
            done = subprocess.run([program(args[0]), *args[1:]], stdout=full, stderr=subprocess.PIPE, text=True)
        assert done.returncode == 1 and done.stderr.startswith(f"{args[0]}: writing the output failed: "), (args, done)


def test_exit_codes_are_those_of_the_help():
    page = (PAGES / "weftctl.1").read_text().split(".Sh EXIT STATUS")[1]
    codes = re.search(r"Exit codes:\s*((?:.|\n)*)", help_of("weftctl"))[1]
    assert re.findall(r"^\.It (\d+)", page, re.M) == re.findall(r"\d+", codes), codes


def test_programs_print_their_version():
    version = re.search(r"version: '([0-9.]+)'", (SOURCE / "meson.build").read_text())[1]
    for name in ("weftd", "weft-gguf", "weft-bench", "weftctl"):
        for option in ("--version", "-V"):
            if os.path.exists(program(name)):
                lines = subprocess.run([program(name), option], capture_output=True, text=True).stdout.splitlines()
                assert lines[0] == f"{name} {version}", lines
                built = dict(re.split(r": +", line, maxsplit=1) for line in lines[1:])
                assert list(built) == ["commit", "compiler", "backends"], lines
                assert re.fullmatch(r"unknown|[0-9a-f]{12}( with changes)?", built["commit"]), lines
                assert re.fullmatch(r"(gcc|clang) [0-9.]+", built["compiler"]), lines
                assert re.match(r"cpu \([a-z0-9 ]+\)", built["backends"]), lines


def test_pages_can_be_read():
    if not shutil.which("groff"):
        raise Skip("groff is not installed")
    for page in [*sorted(PAGES.glob("*.[1-8]")), CONF_PAGE]:
        p = subprocess.run(["groff", "-mandoc", "-Tascii", str(page)], capture_output=True, text=True)
        assert p.returncode == 0 and "SEE ALSO" in re.sub(r".\x08|\033\[\d*m", "", p.stdout), (page, p)


def complete(*words):
    """What bash offers for the last word."""
    name = "weftd" if words[0] == "weftd" else "commands"
    if not os.path.exists(program(words[0])):
        raise Skip(words[0] + " is not built")
    quoted = " ".join(f"'{w}'" for w in (program(words[0]), *words[1:]))
    script = f'. "$0"; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _weft_{name} "$1"; printf "%s\\n" "${{COMPREPLY[@]}}"'
    p = subprocess.run(["bash", "--norc", "-c", script, str(SOURCE / "conf/bash-completion"), program(words[0])],
                       capture_output=True, text=True, check=True)
    return p.stdout.split()


def test_bash_completes_options_values_and_commands():
    if not shutil.which("bash"):
        raise Skip("bash is not installed")
    assert complete("weftd", "--kv-me") == ["--kv-memory"]
    assert complete("weftd", "--kv-type", "") == ["f16", "q8_0", "q4_0", "auto"]
    assert complete("weftd", "--anonymous", "y") == ["yes"]
    assert complete("weftd", "--model", "/") == []
    assert complete("weft-gguf", "ver") == ["verify"]
    assert complete("weft-gguf", "info", "--j") == ["--json"]
    assert complete("weftctl", "ten") == ["tenants"]
    assert complete("weftctl", "--so") == ["--socket"]


def completed(shell, *words):
    """Returns what fish or zsh offer for the last word; zsh's own functions are replaced by ones that print."""
    if not shutil.which(shell):
        raise Skip(shell + " is not installed")
    file = str(SOURCE / "conf" / (shell + "-completion"))
    if shell == "fish":
        command = ["fish", "--no-config", "-c", f"source {file}; complete -C '{' '.join(words)}'"]
    else:
        command = ["zsh", "-f", "-c", 'compadd() { shift; print -rl -- "$@" }; _files() { print files }; words=("${@:2}"); '
                   'CURRENT=$#words; PREFIX=$words[-1]; source "$1"', "zsh", file, *words]
    p = subprocess.run(command, capture_output=True, text=True, check=True,
                       env={**os.environ, "PATH": f"{os.path.dirname(program('weftd'))}:{os.environ['PATH']}"})
    offers = [line.split("\t")[0] for line in p.stdout.splitlines()]
    return sorted(o for o in offers if o.startswith(words[-1]))


def check_completion(shell):
    assert completed(shell, "weftd", "--kv-me") == ["--kv-memory"]
    assert completed(shell, "weftd", "--kv-type", "") == ["auto", "f16", "q4_0", "q8_0"]
    assert completed(shell, "weft-gguf", "ver") == ["verify"]
    assert completed(shell, "weft-gguf", "info", "--j") == ["--json"]
    assert completed(shell, "weftctl", "ten") == ["tenants"]
    assert completed(shell, "weftctl", "--so") == ["--socket"]


def test_fish_completes_options_values_and_commands():
    check_completion("fish")


def test_zsh_completes_options_values_and_commands():
    check_completion("zsh")


main(globals())
