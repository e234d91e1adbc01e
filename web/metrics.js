// Reads Prometheus' text format of /metrics; computes rates and quantiles between two readings.

const LINE = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? ([-+\d.eE]+|NaN|[-+]?Inf)$/;
const LABEL = /(?<!\w)(\w+)="((?:\\.|[^"\\])*)"/g;

// Parses a reading: {at: seconds, series: Map of name to [{labels, value}]}.
export function parse(text) {
  const series = new Map();
  for (const line of text.split("\n")) {
    const m = line.match(LINE);
    if (!m) continue;
    const labels = {};
    for (const [, name, value] of (m[2] ?? "").matchAll(LABEL))
      labels[name] = value.replace(/\\(.)/g, "$1");
    if (!series.has(m[1])) series.set(m[1], []);
    series.get(m[1]).push({ labels, value: m[3].endsWith("Inf") ? Infinity : Number(m[3]) });
  }
  return { at: performance.now() / 1000, series };
}

// Returns the sum of family @name, or NaN if there is none.
export function value(reading, name) {
  const rows = reading?.series.get(name);
  return rows ? rows.reduce((sum, r) => sum + r.value, 0) : NaN;
}

// Returns the values of label @key of family @name, one for each model.
export function label(reading, name, key) {
  const all = (reading?.series.get(name) ?? []).map((r) => r.labels[key]);
  return all.length ? [...new Set(all)].join(", ") : undefined;
}

// Returns the growth of counter @name; its whole value if the server has restarted.
export function increase(before, now, name) {
  const a = value(before, name);
  const b = value(now, name);
  return b >= a ? b - a : b;
}

export function rate(before, now, name) {
  return before ? increase(before, now, name) / Math.max(now.at - before.at, 0.001) : NaN;
}

// Returns the quantile @q of the observations between the readings, interpolated in its bucket, or
// NaN without observations.
// A negative result -x means that the quantile is in the first bucket, below x.
export function quantile(before, now, name, q) {
  const byBound = new Map();
  const count = (reading, sign) => {
    for (const r of reading?.series.get(`${name}_bucket`) ?? [])
      byBound.set(r.labels.le, (byBound.get(r.labels.le) ?? 0) + sign * r.value);
  };
  count(now, 1);
  count(before, -1);
  const counts = [...byBound]
    .map(([le, n]) => [le === "+Inf" ? Infinity : Number(le), n])
    .sort(([a], [b]) => a - b);
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return NaN;
  let low = 0;
  let below = 0;
  for (const [bound, count] of counts) {
    if (count >= q * total) {
      if (bound === Infinity) return low;
      if (below === 0 && low === 0) return -bound;
      return low + ((bound - low) * (q * total - below)) / Math.max(count - below, 1);
    }
    low = bound;
    below = count;
  }
  return low;
}

// Returns the pages of all models that are loaded: {total, used, pinned, cached, free, page}, where page
// is the tokens of one. The total is the sum of its parts: a model without a worker has none of them.
export function pages(reading) {
  const all = (name) => value(reading, name) || 0;
  const sum = { total: 0, used: 0, pinned: all("weft_pages_pinned"), cached: 0, free: all("weft_pages_free"), page: 0 };
  sum.cached = Math.max(all("weft_pages_cached") - sum.pinned, 0);
  for (const r of reading.series.get("vllm:cache_config_info") ?? []) {
    const usage = (reading.series.get("vllm:kv_cache_usage_perc") ?? []).find(
      (u) => u.labels.model_name === r.labels.model_name,
    );
    sum.used += Math.round((Number(r.labels.num_gpu_blocks) || 0) * (usage?.value || 0));
    sum.page = Number(r.labels.block_size) || sum.page;
  }
  sum.total = sum.used + sum.pinned + sum.cached + sum.free;
  return sum;
}

// Returns {tenant: {field: value}} of the families weft_tenant_*.
export function tenants(reading) {
  const rows = {};
  for (const [name, list] of reading.series) {
    if (!name.startsWith("weft_tenant_")) continue;
    const field = name.slice(12).replace(/_total$/, "");
    for (const r of list) {
      const row = (rows[r.labels.tenant] ??= {});
      row[field] = (row[field] ?? 0) + r.value;
    }
  }
  return rows;
}
