// Draws a chart of lines over time, as SVG. Colours are classes of the style sheet.

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 150;
const LEFT = 44;
const BOTTOM = 20;

function s(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

// Returns the smallest of 1, 2, 4, 10, 20, ... that is at least @v. Half of it, the middle of the
// axis, is a whole number from 2 on: half a request would look strange.
function nice(v) {
  const power = 10 ** Math.floor(Math.log10(Math.max(v, 1e-9)));
  return [1, 2, 4, 10].map((k) => k * power).find((k) => k >= v * 0.999);
}

// Draws @lines, [{name, class, values}] with the newest value last and one every @seconds; @n values
// fit.
export function draw(svg, { label, lines, n, seconds, format, least = 1 }) {
  const width = Math.max(svg.clientWidth || svg.parentElement?.clientWidth || 300, 200);
  const top = nice(Math.max(least, ...lines.flatMap((l) => l.values.filter(Number.isFinite))));
  const x = (i, length) => LEFT + ((n - length + i) / (n - 1)) * (width - LEFT - 4);
  const y = (v) => 8 + (1 - v / top) * (HEIGHT - BOTTOM - 8);
  svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
  svg.setAttribute("role", "img");
  svg.setAttribute(
    "aria-label",
    `${label}: ${lines.map((l) => `${l.name} ${format(l.values.at(-1) ?? NaN)}`).join(", ")}`,
  );
  const parts = [];
  for (const f of [0, 0.5, 1]) {
    parts.push(
      s("line", { class: "grid", x1: LEFT, x2: width - 4, y1: y(f * top), y2: y(f * top) }),
    );
    parts.push(
      s(
        "text",
        { class: "tick", x: LEFT - 8, y: y(f * top) + 4, "text-anchor": "end" },
        format(f * top),
      ),
    );
  }
  const span = (n - 1) * seconds;
  for (const f of [0, 0.5, 1])
    parts.push(
      s(
        "text",
        {
          class: "tick",
          x: LEFT + f * (width - LEFT - 4),
          y: HEIGHT - 4,
          "text-anchor": f === 0 ? "start" : f === 1 ? "end" : "middle",
        },
        f === 1 ? "now" : `−${span < 600 ? `${Math.round((1 - f) * span)} s` : `${Math.round(((1 - f) * span) / 60)} min`}`,
      ),
    );
  for (const line of lines) {
    const points = line.values
      .map((v, i) => [x(i, line.values.length), y(Math.max(0, v))])
      .filter(([, v]) => Number.isFinite(v));
    if (!points.length) continue;
    const d = points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
    if (!line.plain)
      parts.push(
        s("path", {
          class: `area ${line.class}`,
          d: `${d}L${points.at(-1)[0].toFixed(1)} ${y(0)}L${points[0][0].toFixed(1)} ${y(0)}Z`,
        }),
      );
    parts.push(s("path", { class: `line ${line.class}`, d }));
  }
  svg.replaceChildren(...parts);
}
