// Short texts about an answer and about a model.

import { number, short } from "./dom.js";

// Returns @part of @whole in percent: what is there is never "0 %".
const share = (part, whole) => (100 * part < 0.5 * whole ? "< 1 %" : `${number((100 * part) / whole)} %`);

// An answer that arrives at once has no speed that could be told.
const SHORTEST_S = 0.02;

// Returns the rate @r per second with a decimal where it is small.
const rate = (r) => number(r, r < 100 ? 1 : 0);

// Returns the speed and length of an answer with the statistics @s, and how full the context is.
export function figures(s) {
  if (!s?.output) return [];
  return [
    s.output > 1 && s.decode > SHORTEST_S && `${rate((s.output - 1) / s.decode)} tok/s`,
    `${number(s.output)} ${s.output === 1 ? "token" : "tokens"}`,
    s.context > 0 && `${share(s.prompt + s.output, s.context)} of the context`,
  ].filter(Boolean);
}

// Returns what a comment of the server says of a request without output: the share of its prompt that is
// done, or what it waits for, and how long that is expected to take. "" where it says nothing.
export function waiting(comment) {
  const [first, ...rest] = comment.split("; ");
  const begin = first.indexOf(": ");
  const name = begin > 0 ? first.slice(0, begin) : "";
  const about = rest.at(-1)?.startsWith("about ") ? rest.at(-1).slice(6) : "";
  const left = about && `, about ${about}`;
  const [done, total] = (rest[0]?.endsWith(" prompt tokens") ? rest[0] : "").split(" of ").map(parseFloat);
  if (total > 0) return `Reads the prompt: ${number((100 * done) / total)} %${left}`;
  if (name === "place") return `Waits for its turn in the queue${left}`;
  if (name) return `Waits (${first.slice(begin + 2)})${left}`;
  return first === "keep-alive" ? "" : comment;
}

// Returns how many parameters a model has, with "B" for thousands of millions, as models are named.
const parameters = (n) => `${short(n).replace("G", "B")} parameters`;

// Returns the size and the context of the model @m of /v1/models, short enough to stand below its name.
export function brief(m) {
  return [
    m?.meta?.n_params > 0 && parameters(m.meta.n_params),
    m?.max_model_len > 0 && `context ${number(m.max_model_len)}`,
  ]
    .filter(Boolean)
    .join(" · ");
}

// Returns what is known of the model @m of /v1/models: its size and its context.
export function describe(m) {
  return [
    m?.meta?.n_params > 0 && parameters(m.meta.n_params),
    m?.meta?.size > 0 && `${short(m.meta.size)}B`,
    m?.max_model_len > 0 && `context of ${number(m.max_model_len)} tokens`,
    m?.meta?.n_ctx_train > m?.max_model_len && `trained for ${number(m.meta.n_ctx_train)}`,
  ]
    .filter(Boolean)
    .join(", ");
}
