// Draws the live view: /metrics, read once a second, and the requests that have ended.

import * as api from "./api.js";
import { draw } from "./chart.js";
import { duration, h, number, short } from "./dom.js";
import { increase, label, pages, parse, quantile, rate, tenants, value } from "./metrics.js";
import * as requests from "./requests.js";

const SECONDS = 1;
const POINTS = 121; // of the last minutes
const HOUR_POINTS = 720;
const HOUR_TICKS = 5; // seconds between two readings of the last hour
const WINDOW = 60; // seconds of what is a mean
const CELLS = 240;

let timer = null;
let readings = []; // of WINDOW seconds
let history = { output: [], prompt: [], running: [], waiting: [], rows: [] };
let hour = null; // {seconds, output: [...], ...} of the daemon
let showsHour = false;
let ticks = 0;
let view = null;
let lastError = "";

export function start(box) {
  if (!view) view = build(box);
  if (timer !== null) return;
  history = { output: [], prompt: [], running: [], waiting: [], rows: [] };
  readings = [];
  ticks = 0;
  tick();
}

// Reads the daemon's history. The first time it fills the charts of the last minutes as well.
async function readHour() {
  try {
    hour = await api.get("web/history");
  } catch {
    return; // an older daemon, or none
  }
  const n = Math.ceil(POINTS / (hour.seconds / SECONDS));
  for (const [name, values] of Object.entries(history)) {
    if (values.length > 1 || !Array.isArray(hour[name])) continue;
    const before = hour[name].slice(-n).flatMap((v) => Array(hour.seconds / SECONDS).fill(v));
    history[name] = [...before, ...values].slice(-POINTS);
  }
}

export function stop() {
  clearTimeout(timer);
  timer = null;
}

function tile(title, help) {
  const figure = h("strong", null, "–");
  const more = h("small", null, "");
  return {
    element: h("div", { class: "tile", title: help }, h("span", null, title), figure, more),
    figure,
    more,
  };
}

function chart(title, names) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.classList.add("chart");
  const legend = h(
    "span",
    { class: "legend" },
    names.map(([name, cls]) => h("span", { class: cls }, name)),
  );
  return {
    element: h(
      "section",
      { class: "card" },
      h("div", { class: "card-head" }, h("h2", null, title), legend),
      svg,
    ),
    svg,
  };
}

function spanButton() {
  const button = h("button", { type: "button", class: "button", "aria-pressed": "false" }, "Last hour");
  button.addEventListener("click", () => {
    showsHour = !showsHour;
    button.setAttribute("aria-pressed", String(showsHour));
    drawCharts();
  });
  return button;
}

function build(box) {
  const v = {
    tiles: {
      output: tile("Output", "Output tokens per second"),
      prompt: tile("Prompts", "Prompt tokens computed per second; those from the cache are not counted"),
      running: tile("Requests", "Requests in the batch"),
      kv: tile("KV memory", "Share of the pages that requests use"),
      hits: tile(
        "Prefix hits",
        "Share of prompt tokens found in the cache in the last minute",
      ),
      drafts: tile("Drafts accepted", "Share of drafted tokens that the model accepted in the last minute"),
    },
    output: chart("Output tokens per second", []),
    prompt: chart("Prompt tokens per second", []),
    batch: chart("Batch", [
      ["running", "c1"],
      ["waiting", "c2"],
    ]),
    rows: chart("Tokens per step", []),
    map: h("div", { class: "map", role: "img" }),
    mapLegend: h("p", { class: "legend" }),
    latency: h("tbody"),
    tenants: h("tbody"),
    device: h("dl", { class: "facts" }),
    message: h("p", { class: "note error", role: "alert", hidden: true }),
  };
  const table = (head, body) =>
    h(
      "div",
      { class: "table", tabindex: "0", role: "region", "aria-label": head[0] },
      h(
        "table",
        null,
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            head.map((t, i) => h("th", { class: i ? "align-end" : "" }, t)),
          ),
        ),
        body,
      ),
    );
  const card = (title, ...children) =>
    h(
      "section",
      { class: "card" },
      h("div", { class: "card-head" }, h("h2", null, title)),
      ...children,
    );
  const wide = card("Requests that have ended", ...requests.build());
  wide.classList.add("wide");
  box.replaceChildren(
    v.message,
    h(
      "div",
      { class: "tiles" },
      Object.values(v.tiles).map((t) => t.element),
    ),
    h("div", { class: "span" }, spanButton()),
    h(
      "div",
      { class: "cards" },
      v.output.element,
      v.batch.element,
      v.prompt.element,
      v.rows.element,
      card("KV memory", v.map, v.mapLegend),
      card("Latency of the last minute", table(["Time", "p50", "p95", "p99"], v.latency)),
      card(
        "Tenants",
        table(["Tenant", "run", "wait", "requests", "prompt", "cached", "output"], v.tenants),
      ),
      card("Engine", v.device),
      wide,
    ),
  );
  return v;
}

async function tick() {
  timer = setTimeout(tick, SECONDS * 1000);
  if (document.hidden) return;
  try {
    if (ticks++ % HOUR_TICKS === 0) await readHour();
    const now = parse(await api.text("metrics"));
    if (timer === null) return;
    const before = readings.at(-1);
    readings.push(now);
    readings = readings.filter((r) => now.at - r.at <= WINDOW);
    show(before, now);
    lastError = "";
  } catch (error) {
    lastError = error.message;
  }
  view.message.hidden = !lastError;
  view.message.textContent = lastError;
  if (Math.round(performance.now() / 1000) % 3 === 0 || !view.asked) requests.refresh(Object.keys(tenants(readings.at(-1))));
  view.asked = true;
}

function push(name, v) {
  history[name].push(v);
  if (history[name].length > POINTS) history[name].shift();
}

function percent(part, whole) {
  return whole > 0 ? `${number((100 * part) / whole, part / whole < 0.1 ? 1 : 0)} %` : "–";
}

function set(t, figure, more) {
  t.figure.textContent = figure;
  t.more.textContent = more;
}

function show(before, now) {
  const first = readings[0];
  const grown = (name) => increase(first, now, name);
  push("output", rate(before, now, "vllm:generation_tokens_total"));
  push("prompt", rate(before, now, "weft_prompt_tokens_computed_total"));
  push("running", value(now, "vllm:num_requests_running"));
  push("waiting", value(now, "vllm:num_requests_waiting"));
  push("rows", value(now, "vllm:num_requests_running") > 0 ? value(now, "weft_last_step_rows") : 0);
  const t = view.tiles;
  const last = (name) => history[name].at(-1);
  set(t.output, short(last("output")), "tokens/s");
  set(t.prompt, short(last("prompt")), "tokens/s");
  set(t.running, short(last("running")), `run, ${short(last("waiting"))} wait`);
  set(t.kv, percent(pages(now).used, pages(now).total), "of pages in use");
  set(
    t.hits,
    percent(grown("vllm:prefix_cache_hits_total"), grown("vllm:prefix_cache_queries_total")),
    "of the last minute",
  );
  set(
    t.drafts,
    percent(
      grown("vllm:spec_decode_num_accepted_tokens_total"),
      grown("vllm:spec_decode_num_draft_tokens_total"),
    ),
    `${short(grown("vllm:spec_decode_num_draft_tokens_total"))} drafted`,
  );
  drawCharts();
  showMap(now);
  showLatency(first, now);
  showTenants(now);
  showDevice(now);
}

function drawCharts() {
  const data = showsHour && hour ? hour : history;
  const [n, seconds] = data === hour ? [HOUR_POINTS, hour.seconds] : [POINTS, SECONDS];
  const lines = (svg, title, list, least) => draw(svg, { label: title, n, seconds, format: short, least, lines: list });
  lines(
    view.output.svg,
    "Output tokens per second",
    [{ name: "output", class: "c1", values: data.output }],
    10,
  );
  lines(
    view.prompt.svg,
    "Prompt tokens per second",
    [{ name: "prompt", class: "c3", values: data.prompt }],
    10,
  );
  lines(
    view.batch.svg,
    "Batch",
    [
      { name: "running", class: "c1", values: data.running },
      { name: "waiting", class: "c2", values: data.waiting, plain: true },
    ],
    4,
  );
  lines(
    view.rows.svg,
    "Tokens per step",
    [{ name: "rows", class: "c4", values: data.rows }],
    8,
  );
}

function showMap(now) {
  const { total, used, pinned, cached, free, page } = pages(now);
  const parts = [
    ["used", used],
    ["pinned", pinned],
    ["cached", cached],
    ["free", free],
  ];
  const cells = Math.min(CELLS, total) || 0;
  const kinds = [];
  let sum = 0;
  for (const [name, n] of parts) {
    sum += n;
    while (kinds.length < Math.round((sum / Math.max(total, 1)) * cells)) kinds.push(name);
  }
  if (view.map.children.length !== kinds.length)
    view.map.replaceChildren(...kinds.map(() => h("i")));
  kinds.forEach((k, i) => (view.map.children[i].className = k));
  view.map.setAttribute("aria-label", parts.map(([name, n]) => `${n} pages ${name}`).join(", "));
  view.mapLegend.replaceChildren(
    ...parts.map(([name, n]) => h("span", { class: `k-${name}` }, `${name} ${short(n)}`)),
    h(
      "span",
      { class: "muted" },
      total ? `${short(total)} pages of ${page} tokens` : "no worker yet",
    ),
  );
}

function showLatency(first, now) {
  const rows = [
    ["First token", "vllm:time_to_first_token_seconds"],
    ["Between tokens", "vllm:inter_token_latency_seconds"],
    ["Waiting", "vllm:request_queue_time_seconds"],
    ["Full answer", "vllm:e2e_request_latency_seconds"],
  ];
  view.latency.replaceChildren(
    ...rows.map(([name, family]) =>
      h(
        "tr",
        null,
        h("th", null, name),
        [0.5, 0.95, 0.99].map((q) =>
          h("td", { class: "align-end" }, latency(quantile(first, now, family, q))),
        ),
      ),
    ),
  );
}

function latency(seconds) {
  return seconds < 0 ? `< ${duration(-seconds)}` : duration(seconds);
}

function showTenants(now) {
  const rows = Object.entries(tenants(now)).sort(
    ([, a], [, b]) => b.output_tokens - a.output_tokens,
  );
  const columns = [
    "requests_running",
    "requests_waiting",
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
  ];
  view.tenants.replaceChildren(
    ...rows.map(([name, t]) =>
      h(
        "tr",
        null,
        h("th", null, name || "(no key)"),
        columns.map((k) => h("td", { class: "align-end" }, short(t[k]))),
      ),
    ),
    ...(rows.length
      ? []
      : [h("tr", null, h("td", { colspan: "7", class: "muted" }, "There have been no requests yet."))]),
  );
}

function showDevice(now) {
  const facts = [
    ["Model", label(now, "vllm:cache_config_info", "model_name")],
    [
      "Last step",
      `${duration(value(now, "weft_last_step_seconds"))}, ${short(value(now, "weft_last_step_rows"))} tokens`,
    ],
    ["Longest pause of the front", duration(value(now, "weft_loop_lag_longest_seconds"))],
    ["Connections", short(value(now, "weft_connections"))],
    ["Preemptions", short(value(now, "vllm:num_preemptions_total"))],
    ["Workers lost", short(value(now, "weft_workers_lost_total"))],
  ];
  view.device.replaceChildren(
    ...facts
      .filter(([, v]) => v !== undefined)
      .flatMap(([k, v]) => [h("dt", null, k), h("dd", null, v)]),
  );
}
