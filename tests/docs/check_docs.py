"""Holds README, CONTRIBUTING, CHANGELOG and docs/ to the programs that they describe.

Lengths of pages and lines, links and anchors, names of source files, options, metrics, log events, error codes and
commands are compared with the tree and with the programs' own words. Blocks marked ```sh run or ```python run are run
as they are written, against a small model on 127.0.0.1; only addresses and file names are replaced.
"""
import functools
import os
import pathlib
import re
import shlex
import subprocess
import tempfile

from pages import ROOT, Page, all_pages
from weftd import Weftd, keys_in, main, program, tiny_model

PAGE_LINES, README_LINES, COLUMNS = 300, 150, 120
PROGRAMS = ("weftd", "weftctl", "weft-gguf", "weft-bench")
COMMANDS = {
    "weftctl": "pull chat launch".split(),
    "weft-gguf": "info verify tokenize detokenize picture render".split(),
    "weft-bench": "engine serve agents identity".split(),
}
# Options of commands that have no --help of their own, and of weftd that its users never give.
MORE_OPTIONS = {"weftctl": {"all", "watch", "path", "partial", "help"}, "weftd": {"worker", "decode-pictures"}}


@functools.cache
def said(*command):
    return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout


@functools.cache
def options_of(name):
    """Returns the options of a program and all of its commands, without dashes."""
    texts = [said(program(name), "--help")] + [said(program(name), c, "--help") for c in COMMANDS.get(name, [])]
    found = {o for text in texts for o in re.findall(r"(?<![\w-])--?([a-zA-Z][a-z-]*)", text)}
    return found | MORE_OPTIONS.get(name, set()) | {"help", "version"} | (options_of_llama_server() if name == "weftd" else set())


def options_of_llama_server():
    """Returns those that weftd translates or passes over, without dashes."""
    rows = re.findall(r'\{"([^"]*)",\s*LLAMA_(\w+)', (ROOT / "daemon/front/llama_options.c").read_text())
    assert len(rows) > 60, rows
    return {n.lstrip("-") for names, kind in rows if not kind.startswith("REFUSED") for n in names.split(",")}


@functools.cache
def keys_of_weftd():
    """Returns {key: (section, default or "")} from weftd --help."""
    section, keys = None, {}
    for line in said(program("weftd"), "--help").splitlines():
        if m := re.fullmatch(r"\[(\w+)\]", line):
            section = m[1]
        elif section and (m := re.match(r"  --([a-z-]+) \S+(?: \((.*)\))?$", line)):
            keys[m[1]] = (section, m[2] or "")
    assert len(keys) > 60, keys
    return keys


def sources(*folders):
    return "\n".join(p.read_text(errors="replace") for f in folders for p in sorted((ROOT / f).rglob("*.[ch]")))


def none_of(problems):
    assert not problems, "\n" + "\n".join(problems)


# ---- the checks, as functions of a page, so that they can be tried on bad ones ----

def lengths(page):
    most = README_LINES if page.path == "README.md" else PAGE_LINES
    n = page.text.count("\n")
    if n > most and page.path != "CHANGELOG.md":
        yield f"{page.path}: {n} lines, at most {most}"
    for at, line in page.prose:
        if len(line) > COLUMNS:
            yield f"{page.path}:{at}: {len(line)} columns, at most {COLUMNS}"


def bad_links(page, pages):
    for at, target in page.links():
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page.path), file)) if file else page.path
        if not (ROOT / path).exists():
            yield f"{page.path}:{at}: {target}: no such file"
        elif anchor and path in pages and anchor not in pages[path].anchors():
            yield f"{page.path}:{at}: {target}: no such anchor"


def missing_files(page):
    folders = "lib|kvpager|engine|scheduler|api|daemon|cmd|tests|docs|conf|packaging|systemd|web|debian"
    for at, span in page.spans():
        for path in re.findall(rf"(?<![\w/.-])(?:{folders})/[\w./-]*\w", span):
            if not (ROOT / path).exists() and not re.search(r"\bfoo\b|_foo\b|/results/", path) and not (ROOT / (path + ".c")).exists():
                yield f"{page.path}:{at}: {path}: no such file"


@functools.cache
def functions_of_sources():
    """Returns all names in front of a bracket in what is compiled, scripts and tests."""
    text = "\n".join(p.read_text(errors="replace") for f in ("lib", "kvpager", "engine", "scheduler", "api", "daemon", "cmd", "tests", "web")
                     for p in (ROOT / f).rglob("*") if p.suffix in (".c", ".h", ".cu", ".cuh", ".cpp", ".py", ".js", ".mjs"))
    return set(re.findall(r"\b([a-z_]\w*)\(", text))


def missing_functions(page):
    for at, span in page.spans():
        if (m := re.fullmatch(r"([a-z_]\w*)\(\)", span)) and m[1] not in functions_of_sources():
            yield f"{page.path}:{at}: {span}: no such function"


def commands_in(text):
    """Yields (program, words) of each command of our programs in shell text."""
    text = text.replace("\\\n", " ")
    for line in text.splitlines():
        for part in re.split(r"\|\||&&|[|;()]|\$\(|`", line):
            part = re.sub(r"(^|\s)#.*", "", part)
            try:
                words = shlex.split(part.replace('"', " "), posix=True)
            except ValueError:
                words = part.split()
            while words and (words[0] in ("sudo", "exec") or re.fullmatch(r"\w+=\S*", words[0])):
                words = words[1:]
            if words and os.path.basename(words[0]) in PROGRAMS:
                yield os.path.basename(words[0]), words[1:]


def bad_options(page):
    texts = [(b.line, b.text) for b in page.blocks if b.info[:1] == ["sh"]] + [(at, s) for at, s in page.spans()]
    for at, text in texts:
        for name, words in commands_in(text):
            words = words[:words.index("--")] if "--" in words else words
            for word in words:
                m = re.match(r"--?([a-zA-Z][a-z-]*)", word)
                if m and m[1] not in options_of(name):
                    yield f"{page.path}:{at}: {name} has no option {word}"
            command = next((w for w in words if re.fullmatch(r"[a-z]+", w)), None)
            if name == "weftctl" and command and words[0] == command and not re.search(rf"^  {command}\b", said(program(name), "--help"), re.M):
                yield f"{page.path}:{at}: weftctl has no command {command}"


def bad_keys(page):
    for block in page.blocks:
        if block.info[:1] != ["ini"] or "tenants" in block.info or is_unit(block):
            continue
        for i, line in enumerate(block.lines):
            if (m := re.match(r"([a-z-]+) =", line)) and m[1] not in keys_of_weftd():
                yield f"{page.path}:{block.line + i}: no key {m[1]}"


def is_unit(block):
    return re.search(r"^\[(Service|Socket|Install)\]", block.text, re.M) is not None


def bad_values(page, folder):
    """Has weftd read each example of the configuration, without the keys that name files which are not here."""
    absent = "model models models-dir tls-certificate tls-key api-keys tenants system-prompt kv-disk".split()
    for block in page.blocks:
        if block.info != ["ini"] or is_unit(block) or not re.search(r"^\[", block.text, re.M):
            continue
        lines = ["" if (m := re.match(r"([a-z-]+) = (\S*)", s)) and "#" not in s and (m[1] in absent or "tls:" in s) else s
                 for s in block.lines]
        file = pathlib.Path(folder, "weft.conf")
        file.write_text("\n".join(lines) + "\n")
        p = subprocess.run([program("weftd"), "--config", str(file), "--model", tiny_model(), "--api-keys", keys_in(folder), "--kv-memory",
                            "64M", "--check-config"], capture_output=True, text=True, timeout=60)
        if p.returncode != 0:
            yield f"{page.path}:{block.line}: {p.stderr}"


def endless_requests(path, text):
    """Finds commands whose answer may be as long as the context: a small model may fill it."""
    for m in re.finditer(r"^ *curl[^\n]*/(?:chat/completions|completions|messages|responses|api/chat|api/generate)\b", text, re.M):
        request = text[m.start():].split("```")[0].split("\n\n")[0]
        if not re.search(r'"(max_tokens|max_output_tokens|num_predict)"', request):
            yield f"{path}:{text[:m.start()].count(chr(10)) + 1}: a request without max_tokens"


METRIC = re.compile(r"(?<![\w@-])((?:vllm|llamacpp):[a-z0-9_]+|weft_[a-z0-9_]+)\b")


def bad_metrics(page, known):
    for at, span in page.spans():
        for name in METRIC.findall(span):
            if not name.endswith("_") and re.sub(r"_(bucket|sum|count)$", "", name) not in known and name not in ("weft_admin",):
                yield f"{page.path}:{at}: no metric {name}"


# ---- the tests ----

def test_the_checks_can_fail():
    """each check finds a mistake in a page made for it"""
    long, good = "x" * 121, Page("docs/good.md", "# A\n\n## B c, `d`\n")
    bad = Page("docs/bad.md", f"# T\n\n{long}\n\n| {long} |\n\n[a](none.md) [b](good.md#nothing) [c](good.md#b-c-d) `[x](y)`\n\n"
               f"See `api/nothing.c` and `api/server.c`, `absent_{'one'}()` and `writer_serve()`.\n\n```sh\nsudo weftd --nothing 1 | cat\nweftctl nothing\n```\n\n```ini\n[model]\nmodle = x\n```\n\n"
               "Run `weftd --kv-typ f16`. Metric `weft_nothing_total` and `weft_steps_total`.\n" + "\n" * 300)
    pages = {"docs/good.md": good, "docs/bad.md": bad}
    assert good.anchors() == {"a", "b-c-d"}
    assert len(list(lengths(bad))) == 2 and not list(lengths(good)), list(lengths(bad))
    found = list(bad_links(bad, pages))  # neither target is a file of the tree
    assert len(found) == 3 and "none.md" in found[0], found
    inner = Page("docs/README.md", "# T\n\n[a](#t) [b](#u)\n")
    assert [m.split(": ")[1] for m in bad_links(inner, {"docs/README.md": inner})] == ["#u"]
    assert [m for m in missing_files(bad)] == ["docs/bad.md:9: api/nothing.c: no such file"]
    assert [m for m in missing_functions(bad)] == [f"docs/bad.md:9: absent_{'one'}(): no such function"]
    assert len(list(bad_options(bad))) == 3, list(bad_options(bad))
    assert len(list(bad_keys(bad))) == 1
    curl = "curl http://x/v1/chat/completions -d '{}'\n"
    assert list(endless_requests("a.md", curl + "\n" + curl.replace("{}", '{"max_tokens": 4}'))) == ["a.md:1: a request without max_tokens"]
    assert len(list(bad_metrics(bad, {"weft_steps_total"}))) == 1
    values = Page("docs/values.md", "```ini\n[engine]\nthreads = 2\n```\n```ini\n[engine]\nthreads = 2  # two\n```\n")
    with tempfile.TemporaryDirectory() as folder:
        assert [m.split(":")[1] for m in bad_values(values, folder)] == ["6"]


def test_pages_are_short():
    """no page above 300 lines (README 150; the changelog grows), no line of prose above 120 columns"""
    of_tests = [Page(str(p.relative_to(ROOT)), p.read_text()) for p in (ROOT / "tests").glob("*/README.md")]
    assert len(of_tests) >= 3, of_tests
    none_of([m for p in all_pages() + of_tests for m in lengths(p)])


def test_links_lead_somewhere():
    """every internal link names a file, and every anchor a heading"""
    pages = {p.path: p for p in all_pages()}
    none_of([m for p in all_pages() for m in bad_links(p, pages)])


def test_the_chart_shows_the_stored_results():
    drawn = subprocess.run([ROOT / "tests/bench/chart.py"], capture_output=True, text=True, check=True).stdout
    assert drawn == (ROOT / "docs/images/speed.svg").read_text(), "run tests/bench/chart.py > docs/images/speed.svg"


def test_every_page_is_in_the_index():
    """docs/README.md links every page below docs/"""
    index = next(p for p in all_pages() if p.path == "docs/README.md")
    linked = {os.path.normpath(os.path.join("docs", t.split("#")[0])) for _, t in index.links()}
    none_of([p.path for p in all_pages() if p.path.startswith("docs/") and p.path not in linked | {"docs/README.md"}])


def test_requests_have_an_end():
    """every curl for an answer, on a page or printed by quickstart, has max_tokens"""
    texts = [(p.path, p.text) for p in all_pages()] + [("quickstart", (ROOT / "quickstart").read_text())]
    none_of([m for path, text in texts for m in endless_requests(path, text)])


def test_source_files_exist():
    """every source file that a page names exists"""
    none_of([m for p in all_pages() for m in missing_files(p)])


def test_functions_exist():
    """every function that a page names exists"""
    none_of([m for p in all_pages() if p.path != "CHANGELOG.md" for m in missing_functions(p)])


def test_options_exist():
    """every option and command that a page gives to a program is one of that program"""
    none_of([m for p in all_pages() if p.path != "CHANGELOG.md" for m in bad_options(p)])


def test_keys_exist():
    """every key in an example of the configuration is one of weftd, which accepts its value"""
    none_of([m for p in all_pages() for m in bad_keys(p)])
    with tempfile.TemporaryDirectory() as folder:
        none_of([m for p in all_pages() for m in bad_values(p, folder)])


def test_option_reference_is_complete():
    """docs/reference/options.md has every key in its section with its default, and no other"""
    page = next(p for p in all_pages() if p.path == "docs/reference/options.md")
    section, documented = None, {}
    for line in page.text.splitlines():
        if m := re.match(r"## \[(\w+)\]", line):
            section = m[1]
        elif section and line.startswith("| `"):
            cells = [c.strip() for c in line.split("|")[1:-1]]
            names = re.findall(r"`([a-z-]+)`", cells[0])
            defaults = cells[1].split(", ") if len(names) > 1 else [cells[1]]
            for name, default in zip(names, defaults, strict=True):
                documented[name] = (section, default)
    keys = keys_of_weftd()
    problems = [f"{k}: not documented" for k in keys if k not in documented] + [f"{k}: no such key" for k in documented if k not in keys]
    for k in documented.keys() & keys.keys():
        (section, default), (real_section, real) = documented[k], keys[k]
        if section != real_section:
            problems.append(f"{k}: in [{real_section}], not [{section}]")
        # weftd --help gives no default that is empty or 0, and the whole list of draft-sources
        if real and default != real and default != "all":
            problems.append(f"{k}: default {default}, not {real}")
        if not real and re.fullmatch(r"[1-9]\d*[KMG]?", default):
            problems.append(f"{k}: default {default}, but weftd --help has none")
    none_of(problems)


def test_commands_are_documented():
    """docs/reference/commands.md has the commands of weftctl and weft-gguf"""
    page = next(p for p in all_pages() if p.path == "docs/reference/commands.md")
    first = " ".join(cells[0] for _, cells in page.rows())
    for name in ("weftctl", "weft-gguf"):
        commands = re.findall(r"^  ([a-z]+)\b", said(program(name), "--help"), re.M)
        none_of([f"{name} {c} is not documented" for c in commands if not re.search(rf"`{c}\b", first)])


def test_error_codes_and_log_events_exist():
    """codes of errors and names of log events stand in the sources"""
    text = sources("api", "daemon", "scheduler", "lib")
    problems = []
    for path, column in (("docs/reference/api.md", 2), ("docs/reference/log-events.md", 0)):
        page = next(p for p in all_pages() if p.path == path)
        for at, cells in page.rows():
            if path.endswith("api.md") and not re.match(r"\d{3}", cells[0]):
                continue
            for name in re.findall(r"`([a-z_0-9]+)`", cells[column]):
                if not re.search(rf'["\\ ]{name}[\\" ]', text):
                    problems.append(f"{path}:{at}: {name} is in no source")
    none_of(problems)


def test_refused_fields_are_in_the_table():
    """docs/reference/refused.md has each field that the code refuses by name as unsupported"""
    page = next(p for p in all_pages() if p.path == "docs/reference/refused.md")
    listed = {name for _, cells in page.rows() for name in re.findall(r"`([a-z_0-9]+)", cells[1])}
    code = sources("api")
    refused = set(re.findall(r'UNSUPPORTED\("(\w+)"', code) + re.findall(r'\{"(\w+)", [^{}]*parse_unsupported', code)
                  + re.findall(r'unsupported_parameter",\s*"(\w+)"', code) + re.findall(r'unsupported\(\w+, "(\w+)"\)', code))
    assert len(refused) >= 15, refused
    none_of([f"{name} is refused and not in the table" for name in sorted(refused - listed)])


def run_block(page, block, daemon, folder):
    """Runs one block with bash -e, or with Python, and returns what was wrong, or None."""
    script = block.text.replace("127.0.0.1:8080", f"127.0.0.1:{daemon.port}").replace("/tmp/", folder + "/")
    script = re.sub(r"(?<![\w./-])MODEL\.gguf", tiny_model(), script).replace("weft.sock", daemon.admin)
    env = {**os.environ, "PATH": os.path.dirname(program("weftd")) + ":" + os.environ["PATH"], "WEFT_ADMIN": daemon.admin,
           "WEFT_URL": daemon.url(), "CURL_HOME": folder, "HOME": folder, "WEFT_MODELS": folder}
    interpreter = ["python3"] if block.info[0] == "python" else ["bash", "-e", "-o", "pipefail"]
    p = subprocess.run([*interpreter, "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=60,
                       stdin=subprocess.DEVNULL)
    if p.returncode != 0:
        return f"{page.path}:{block.line}: exit status {p.returncode}\n{script}{p.stdout[-600:]}{p.stderr[-600:]}"
    return None


def test_commands_of_the_pages_run():
    """blocks marked run end with status 0; the tenants files of the manual are accepted"""
    blocks = [(p, b) for p in all_pages() for b in p.blocks if "run" in b.info]
    assert len(blocks) >= 10, len(blocks)
    problems = []
    # The model's weights are random: without a limit its answers end with the context.
    flags = ("--kv-memory", "64M", "--max-context", "4096", "--default-max-tokens", "32")
    with tempfile.TemporaryDirectory(prefix="weft-docs-") as folder, Weftd(*flags) as daemon:
        pathlib.Path(folder, ".curlrc").write_text("fail\nsilent\nshow-error\nmax-time = 30\n")
        problems += [m for p, b in blocks if (m := run_block(p, b, daemon, folder))]
        for page in all_pages():
            for block in page.blocks:
                if block.info[:2] != ["ini", "tenants"]:
                    continue
                file = pathlib.Path(folder, "tenants.conf")
                file.write_text(block.text)
                p = subprocess.run([program("weftd"), "--model", tiny_model(), "--api-keys", keys_in(folder), "--tenants", str(file),
                                    "--check-config"], capture_output=True, text=True, timeout=60)
                if p.returncode != 0:
                    problems.append(f"{page.path}:{block.line}: {p.stderr}")
        status, _, text = daemon.request("GET", "/metrics")
        assert status == 200
        known = set(re.findall(r"^# HELP (\S+)", text, re.M))
        problems += [m for p in all_pages() for m in bad_metrics(p, known | {"weft_admin"})]
        reference = next(p for p in all_pages() if p.path == "docs/reference/metrics.md")
        listed = {name for _, cells in reference.rows() for name in METRIC.findall(cells[0])}
        problems += [f"metrics.md lacks {name}" for name in sorted(known - listed)]
    none_of(problems)


main(globals())
