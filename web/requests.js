// Lists the requests that have ended: those of the user's own key, or with the key of an operator those of
// all tenants.

import * as api from "./api.js";
import { duration, h, number } from "./dom.js";

const PARTS = [
  ["queue_ms", "waited for its turn"],
  ["prefill_ms", "read the prompt"],
  ["decode_ms", "wrote the answer"],
];
const SPANS = [
  ["600", "in the last ten minutes"],
  ["3600", "in the last hour"],
  ["", "at any time"],
  ["times", "between two times"],
];
const STORIES_MAX = 200;

const stories = new Map(); // by generation: what the scheduler decided about it
let view = null;
let asked = 0; // the number of questions; the answer to an older one is not shown

function options(rows) {
  return rows.map(([value, text]) => h("option", { value }, text));
}

function filter(id, label, control) {
  control.id = id;
  control.addEventListener("change", refresh);
  return h("div", { class: "filter" }, h("label", { for: id }, label), control);
}

// Returns the parts of the card.
export function build() {
  const v = {
    tenant: h("select", null, options([["", "all"]])),
    span: h("select", null, options(SPANS)),
    from: h("input", { type: "time" }),
    until: h("input", { type: "time" }),
    order: h("select", null, options([["slowest", "slowest first"], ["", "newest first"]])),
    list: h("div", { class: "requests", tabindex: "0", role: "region", "aria-label": "Requests that have ended" }),
  };
  v.tenantFilter = filter("requests-tenant", "Tenant", v.tenant);
  v.times = [filter("requests-from", "From", v.from), filter("requests-until", "Until", v.until)];
  v.tenantFilter.hidden = true;
  view = v;
  showTimes();
  v.span.addEventListener("change", showTimes);
  return [
    h(
      "div",
      { class: "filters" },
      v.tenantFilter,
      filter("requests-span", "Ended", v.span),
      v.times,
      filter("requests-order", "Order", v.order),
    ),
    h("p", { class: "legend" }, PARTS.map(([key, text]) => h("span", { class: `k-${key}` }, text))),
    v.list,
  ];
}

function showTimes() {
  for (const element of view.times) element.hidden = view.span.value !== "times";
}

// Returns how many seconds ago the clock showed @time ("10:32"), at most a day.
export function secondsSince(time, now = new Date()) {
  const at = new Date(now);
  at.setHours(...time.split(":").map(Number), 0, 0);
  const ago = Math.floor((now - at) / 1000);
  return ago < 0 ? ago + 86400 : ago;
}

function query() {
  const q = new URLSearchParams();
  const set = (name, value) => value !== "" && q.set(name, value);
  const between = view.span.value === "times";
  set("tenant", view.tenant.value);
  set("order", view.order.value);
  if (!between) set("oldest_s", view.span.value);
  if (between && view.from.value) set("oldest_s", secondsSince(view.from.value));
  if (between && view.until.value) set("newest_s", secondsSince(view.until.value));
  return q;
}

// Offers the tenants @names, and those that are offered already.
function offerTenants(names) {
  const known = new Set([...view.tenant.options].map((o) => o.value));
  const more = [...new Set(names)].filter((name) => !known.has(name)).sort();
  view.tenant.append(...options(more.map((name) => [name, name])));
}

// Asks for the list again. @names: of tenants that may be selected.
export async function refresh(names) {
  const number = ++asked;
  let shown;
  try {
    const { operator, requests } = await api.get(`v1/requests?${query()}`);
    const open = new Set([...view.list.querySelectorAll("details[open]")].map((d) => d.dataset.generation));
    view.tenantFilter.hidden = !operator;
    if (operator) offerTenants([...(Array.isArray(names) ? names : []), ...requests.map((r) => r.tenant)]);
    shown = requests.map((r) => request(r, open.has(String(r.generation)), operator));
    if (!shown.length)
      shown = [h("p", { class: "muted" }, operator ? "There are none." : "There are none of your own key.")];
  } catch (error) {
    shown = [h("p", { class: "muted" }, refusal(error))];
  }
  if (number === asked) view.list.replaceChildren(...shown);
}

function refusal(error) {
  if (error.status === 401) return "Enter an API key in the settings to see them.";
  return error.status === 404 ? "This server does not offer this list." : error.message;
}

// Returns what one line says of a request: what failed, how much was read and written, and what took longest.
function summaryOf(r) {
  const [key, text] = PARTS.reduce((a, b) => (r[a[0]] >= r[b[0]] ? a : b));
  const failed = r.status >= 400 ? `failed with status ${r.status} · ` : "";
  if (failed && r.prompt_tokens === 0) return `refused with status ${r.status}`;
  const size = `${number(r.prompt_tokens)} tokens in, ${number(r.output_tokens)} out`;
  return `${failed}${size} · ${text} for ${duration(r[key] / 1000)}`;
}

const WORKS = ["prompt", "decode"];
const MOMENTS = ["admitted", "preempted", "ended"];

// Returns in words where the time of a request went, by its @records.
export function words(records) {
  const all = Math.max(...records.map((r) => r.at_ms + r.ms), 0);
  if (!all) return "";
  const of = (code) => records.filter((r) => r.code === code).reduce((sum, r) => sum + r.ms, 0);
  const percent = (ms) => `${Math.round((100 * ms) / all)} %`;
  const [prompt, decode] = WORKS.map(of);
  const rows = records.filter((r) => r.code === "prompt").reduce((sum, r) => sum + r.rows, 0);
  const waits = records.filter((r) => !WORKS.includes(r.code) && !MOMENTS.includes(r.code));
  const longest = waits.reduce((a, b) => (b.ms > (a?.ms ?? 0) ? b : a), null);
  const most = longest?.ms > all / 200 ? `, longest: it ${longest.text} (${duration(longest.ms / 1000)})` : "";
  return `Of ${duration(all / 1000)}, ${percent(prompt)} went into ${number(rows)} tokens of the prompt, ${percent(decode)} into the answer, ${percent(Math.max(all - prompt - decode, 0))} into waiting${most}.`;
}

function story(records) {
  if (!records.length) return [h("p", { class: "muted" }, "The scheduler's decisions about it are not kept any more.")];
  const line = (r) => `${duration(r.at_ms / 1000)}: ${r.text}${r.ms ? ` (${duration(r.ms / 1000)})` : ""}`;
  return [h("p", null, words(records)), h("ol", { class: "why" }, records.map((r) => h("li", null, line(r))))];
}

// Shows in @box what the scheduler decided about the request @r; asks once.
async function tell(r, box) {
  if (!stories.has(r.generation)) {
    try {
      const { records } = await api.get(`v1/requests/${r.generation}/why`);
      if (stories.size >= STORIES_MAX) stories.clear();
      stories.set(r.generation, records);
    } catch (error) {
      box.replaceChildren(h("p", { class: "muted" }, error.message));
      return;
    }
  }
  box.replaceChildren(...story(stories.get(r.generation)));
}

function facts(r) {
  const cached = r.cached_tokens ? `, ${number(r.cached_tokens)} of them cached` : "";
  const rows = [
    ["Request", r.id],
    ["Ended", new Date(Date.now() - r.ago_ms).toLocaleTimeString()],
    ["Tenant", r.tenant],
    ["Path", r.path],
    ["Prompt", `${number(r.prompt_tokens)} tokens${cached}`],
    ["Output", `${number(r.output_tokens)} tokens${r.finish === "-" ? "" : `, ${r.finish}`}`],
    ...PARTS.map(([key, text]) => [text[0].toUpperCase() + text.slice(1), duration(r[key] / 1000)]),
    ...(r.resumed ? [["Resumed", `${r.resumed} times by a new worker`]] : []),
  ];
  return h("dl", { class: "facts" }, rows.flatMap(([k, v]) => [h("dt", null, k), h("dd", null, v)]));
}

function request(r, open, operator) {
  const total = Math.max(r.total_ms, 0.001);
  const bar = h("span", { class: "bar", "aria-hidden": "true" });
  for (const [key] of PARTS) {
    const part = h("i", { class: key });
    part.style.width = `${Math.min(100, (100 * r[key]) / total)}%`;
    bar.append(part);
  }
  const why = h("div", null, open && stories.has(r.generation) && story(stories.get(r.generation)));
  const told = () => r.generation && element.open && !why.hasChildNodes() && tell(r, why);
  const element = h(
    "details",
    { class: "request", open, dataset: { generation: String(r.generation) }, ontoggle: told },
    h(
      "summary",
      null,
      h("strong", null, duration(r.total_ms / 1000)),
      bar,
      h("span", null, `${operator ? `${r.tenant} · ` : ""}${summaryOf(r)}`),
    ),
    why,
    facts(r),
  );
  return element;
}
