// Shows the parameters of the chat. An empty field is left to the server, whose value is its
// placeholder.

import { byId, h, iconButton } from "./dom.js";

const FIELDS = [
  {
    name: "temperature",
    label: "Temperature",
    min: 0,
    max: 2,
    step: 0.05,
    help: "Higher values give more varied answers. 0 always takes the most likely token.",
  },
  {
    name: "top_p",
    label: "Top p",
    min: 0.01,
    max: 1,
    step: 0.01,
    help: "Sample from the most likely tokens whose probabilities add up to this.",
  },
  {
    name: "top_k",
    label: "Top k",
    min: 0,
    max: 1000,
    step: 1,
    help: "Sample only from the k most likely tokens. 0 turns this off.",
  },
  {
    name: "min_p",
    label: "Min p",
    min: 0,
    max: 1,
    step: 0.01,
    help: "Leave out tokens less likely than this fraction of the most likely one.",
  },
  {
    name: "repetition_penalty",
    label: "Repetition penalty",
    min: 0.5,
    max: 2,
    step: 0.05,
    props: "repeat_penalty",
  },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1 },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1 },
  {
    name: "max_tokens",
    label: "Maximum tokens",
    min: 1,
    max: 1000000,
    step: 1,
    help: "If empty, as many as the context has room for.",
    props: null,
  },
  {
    name: "seed",
    label: "Seed",
    min: 0,
    max: 4294967295,
    step: 1,
    help: "The same seed gives the same answer.",
    props: null,
  },
];
const CHOICES = [
  {
    name: "reasoning_effort",
    label: "Reasoning",
    options: [
      ["", "Default of the model"],
      ["none", "None"],
      ["low", "Low"],
      ["medium", "Medium"],
      ["high", "High"],
    ],
  },
];
const TEXTS = [
  { name: "stop", label: "Stop strings", rows: 2, help: "The answer ends before any of these. One on each line.", placeholder: "" },
  {
    name: "schema",
    label: "JSON Schema of the answer",
    rows: 3,
    help: "The answer always matches it.",
    placeholder: '{"type": "object", "properties": {}}',
    json: true,
  },
  {
    name: "tools",
    label: "Tools",
    rows: 3,
    help: "A list of functions in OpenAI's format. You type in the results of their calls.",
    placeholder: '[{"type": "function", "function": {"name": "weather", "parameters": {}}}]',
    json: true,
  },
];

let inputs = new Map();
let onChange = () => {};
let systemInput = null;

function validJson(text) {
  if (!text.trim()) return true;
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function field(spec, input) {
  const id = `param-${spec.name}`;
  const help = spec.help && h("small", { id: `${id}-help` }, spec.help);
  input.id = id;
  if (help) input.setAttribute("aria-describedby", help.id);
  inputs.set(spec.name, input);
  input.addEventListener("input", () => {
    if (spec.json) input.setAttribute("aria-invalid", validJson(input.value) ? "false" : "true");
    onChange();
  });
  return h("div", { class: "field" }, h("label", { for: id }, spec.label), input, help);
}

export function build(changed, close, keepForAll) {
  onChange = changed;
  inputs = new Map();
  systemInput = h("textarea", {
    id: "param-system",
    rows: "5",
    placeholder: "Instructions that the model reads first",
  });
  systemInput.addEventListener("input", () => onChange());
  const number = (s) =>
    field(
      s,
      h("input", {
        type: "number",
        inputmode: "decimal",
        min: String(s.min),
        max: String(s.max),
        step: s.step === 1 ? "1" : "any",
      }),
    );
  const choice = (s) =>
    field(
      s,
      h(
        "select",
        null,
        s.options.map(([v, label]) => h("option", { value: v }, label)),
      ),
    );
  const area = (s) =>
    field(
      s,
      h("textarea", {
        rows: String(s.rows),
        placeholder: s.placeholder,
        spellcheck: "false",
        class: s.json ? "code-input" : "",
      }),
    );
  byId("panel").replaceChildren(
    h(
      "div",
      { class: "panel-head" },
      h("h2", null, "Parameters"),
      iconButton("close", "Close the parameters", close),
    ),
    h(
      "div",
      { class: "panel-body" },
      h(
        "div",
        { class: "field" },
        h("label", { for: "param-system" }, "System prompt"),
        systemInput,
      ),
      h(
        "fieldset",
        null,
        h("legend", null, "Sampling"),
        h("small", { id: "sampling-source" }),
        h("div", { class: "grid" }, FIELDS.map(number)),
      ),
      h("fieldset", null, h("legend", null, "Output"), CHOICES.map(choice), TEXTS.map(area)),
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", class: "button", onclick: keepForAll }, "Use as default"),
        h("button", { type: "button", class: "button", onclick: reset }, "Reset"),
      ),
    ),
  );
}

function reset() {
  for (const input of inputs.values()) input.value = "";
  onChange();
}

export function show(c) {
  systemInput.value = c.system;
  for (const [name, input] of inputs) {
    input.value = c.params[name] ?? "";
    input.removeAttribute("aria-invalid");
  }
}

// Stores the parameters in the conversation @c.
export function take(c) {
  c.system = systemInput.value;
  c.params = {};
  for (const [name, input] of inputs) if (input.value.trim()) c.params[name] = input.value;
}

const SOURCES = {
  option: "Empty fields: the values of the server's option sampling.",
  "model-file": "Empty fields: the values that the model file recommends.",
  weft: "Empty fields: the server's general defaults.",
  openai: "Empty fields: OpenAI's defaults.",
};

// Shows the server's defaults, from /props, as placeholders.
export function showDefaults(params, source, reasoning) {
  const family = source?.startsWith("family:") && source.slice("family:".length);
  byId("sampling-source").textContent = family
    ? `Empty fields: the values that the makers of ${family} publish.`
    : (SOURCES[source] ?? "");
  const holds = { on: "on", off: "off" }[reasoning];
  inputs.get("reasoning_effort").options[0].textContent = holds
    ? `Default of the model: ${holds}`
    : "Default of the model";
  for (const s of FIELDS) {
    const value = s.props === null ? undefined : params?.[s.props ?? s.name];
    inputs.get(s.name).placeholder =
      typeof value === "number" ? String(Math.round(value * 1000) / 1000) : "";
  }
}

// Returns the fields of a request. Throws an error for the user if a text is invalid.
export function fields(params) {
  const body = {};
  for (const s of FIELDS) {
    if (params[s.name] === undefined) continue;
    const value = Number(params[s.name]);
    if (!Number.isFinite(value)) throw new Error(`${s.label} is not a number.`);
    body[s.name] = value;
  }
  if (params.reasoning_effort) body.reasoning_effort = params.reasoning_effort;
  if (params.stop) body.stop = params.stop.split("\n").filter(Boolean);
  for (const s of TEXTS)
    if (s.json && params[s.name] && !validJson(params[s.name]))
      throw new Error(`${s.label}: this is not JSON.`);
  if (params.schema)
    body.response_format = {
      type: "json_schema",
      json_schema: { name: "answer", schema: JSON.parse(params.schema) },
    };
  if (params.tools) body.tools = JSON.parse(params.tools);
  return body;
}
