"""The installed dashboard and alert rules: every metric that they use is in the metrics of a running daemon."""
import functools
import json
import pathlib
import re
import shutil
import subprocess
import tempfile

from weftd import BUILD, LIMIT_S, Skip, Weftd, copy_daemon, main, wait_until

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "conf/grafana-dashboard.json"
RULES = ROOT / "conf/prometheus-rules.yml"
SERIES = ROOT / "tests/monitoring/alerts.yml"
METRIC = re.compile(r'\b((?:vllm|llamacpp):\w+|weft_\w+|up)\b(?:\s*\{([^}]*)\})?')
OF_PROMETHEUS = {"instance", "job"}  # labels that a scrape adds; and its metric
UP = {"up": {"job", "instance"}}


@functools.cache
def metrics():
    """Returns the metrics of a daemon that has answered, on an emulated device that NVML reports."""
    with tempfile.TemporaryDirectory(prefix="weft-monitoring-") as folder:
        copy_daemon(folder)
        flags = ("--backend", "cuda", "--kv-memory", "64M", "--max-context", "2048")
        with Weftd(*flags, path=folder + "/weftd", env={"LD_LIBRARY_PATH": str(BUILD / "tests" / "daemon" / "nvml")}) as d:
            for _ in d.stream("/v1/completions", {"prompt": "hello", "max_tokens": 8}):
                pass
            wait_until("NVML's figures", lambda: "weft_device_power_watts{" in d.request("GET", "/metrics")[2])
            return d.request("GET", "/metrics")[2]


def promtool(*args, input=None):
    if not shutil.which("promtool"):
        raise Skip("there is no promtool (Debian's package prometheus)")
    return subprocess.run(["promtool", *args], input=input, capture_output=True, text=True, timeout=LIMIT_S)


def served():
    """Returns the labels of each metric of the page."""
    found = dict(UP)
    for line in metrics().splitlines():
        if line and not line.startswith("#"):
            name, labels = re.match(r"([\w:]+)(?:\{(.*)\})? ", line).groups()
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return found


def check(expression, page):
    """Checks that metrics and labels of a PromQL expression exist, and that it has a metric."""
    used = METRIC.findall(expression)
    assert used, expression
    for name, labels in used:
        assert name in page, f"{name} is not in /metrics: {expression}"
        wrong = set(re.findall(r"(\w+)\s*[=!]", labels)) - page[name] - OF_PROMETHEUS
        assert not wrong, f"{name} has no label {wrong}: {expression}"
    grouped = {label.strip() for by in re.findall(r"\bby\s*\(([^)]*)\)", expression) for label in by.split(",")}
    for name, _ in used:
        assert grouped <= page[name] | OF_PROMETHEUS, f"{name} has not all of {grouped}: {expression}"


def rules():
    """Returns (alert, expression) of the file, whose expressions are one line or an indented block."""
    text = RULES.read_text()
    found = re.findall(r"- alert: (\w+)\n +expr: (?:\|-\n)?((?:.(?!\n {8}\w))*.)\n {8}\w", text, re.S)
    assert len(found) == text.count("- alert:") > 5, found
    return found


def test_the_dashboard_asks_for_what_there_is():
    page = served()
    dashboard = json.loads(DASHBOARD.read_text())
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    ids = [p["id"] for p in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    n = 0
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            for operand in target["expr"].split(" / "):
                check(operand, page)
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= {*variables, "__rate_interval"}, target
            legend = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
            assert all(re.search(rf"by \([^)]*\b{label}\b", target["expr"]) for label in legend), target
            n += 1
    assert n > 40
    for v in variables.values():
        if v["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\S+), (\w+)\)", v["query"]).groups()
            assert metric in page and label in page[metric] | OF_PROMETHEUS, v


def test_the_rules_ask_for_what_there_is():
    page = served()
    for _, expression in rules():
        check(expression, page)
    for series in re.findall(r"series: '([^']*)'", SERIES.read_text()):
        check(series, page)


def test_each_alert_fires_on_its_series():
    fired = re.findall(r'alertname="(\w+)"', SERIES.read_text())
    assert set(fired) == {name for name, _ in rules()}
    for args in (("check", "rules", RULES), ("test", "rules", SERIES)):
        done = promtool(*args)
        assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_finds_fault_with_the_names_of_others_alone():
    done = promtool("check", "metrics", input=metrics())
    faults = done.stderr.splitlines()
    assert done.returncode == 3 and faults, done
    for fault in faults:
        assert re.match(r"vllm:\w+ metric names should not contain ':'$|llamacpp:", fault), fault


main(globals())
