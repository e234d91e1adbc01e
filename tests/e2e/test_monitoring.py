"""The dashboard and the alert rules that are installed: what they ask for is in the metrics of a running daemon."""
import json
import pathlib
import re
import shutil
import subprocess

from weftd import Skip, Weftd, main

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "conf/grafana-dashboard.json"
RULES = ROOT / "conf/prometheus-rules.yml"
SERIES = ROOT / "tests/monitoring/alerts.yml"
METRIC = re.compile(r'\b((?:vllm|llamacpp):\w+|weft_\w+|up)\b(?:\s*\{([^}]*)\})?')
OF_PROMETHEUS = {"instance", "job"}  # labels that a scrape adds; and its own metric
UP = {"up": {"job", "instance"}}


def served():
    """The labels of each metric of the page."""
    with Weftd("--threads", "2") as d:
        for _ in d.stream("/v1/completions", {"prompt": "hello", "max_tokens": 8}):
            pass
        page = d.request("GET", "/metrics")[2]
    found = dict(UP)
    for line in page.splitlines():
        if line and not line.startswith("#"):
            name, labels = re.match(r"([\w:]+)(?:\{(.*)\})? ", line).groups()
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels or ""))
    return found


def check(expression, page):
    """Metrics and labels of a PromQL expression exist, and there is a metric."""
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
    """(alert, expression) of the file, whose expressions are one line or an indented block."""
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
            check(target["expr"], page)
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
    if not shutil.which("promtool"):
        raise Skip("there is no promtool (Debian's package prometheus)")
    for args in (("check", "rules", RULES), ("test", "rules", SERIES)):
        done = subprocess.run(["promtool", *args], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr


main(globals())
