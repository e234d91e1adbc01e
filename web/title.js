// Titles of conversations, by the model: asked for when the first answer is complete and nothing else
// runs, with low priority, as one more turn of the conversation, so that its prompt is cached.

import * as api from "./api.js";
import { messages, path } from "./conversation.js";

const ASK = "Write a title of two to six words for this conversation, in its language. Answer with the title only.";
const IDLE_MS = 1500;
const CHARACTERS_MAX = 60;
const PRIORITY = 100; // behind all requests of the same time

let controller = null;
let timer = 0;

// Returns the title in the model's answer @text; "" if there is none that could stand in a list.
export function titleOf(text) {
  const line = text.slice(0, 400).trim().split("\n")[0].replace(/^(?:Title|Titel) ?:/i, "");
  const marks = new Set("\"'“”„‘’«»*_#`. ");
  let [begin, end] = [0, line.length];
  while (begin < end && marks.has(line[begin])) begin++;
  while (end > begin && marks.has(line[end - 1])) end--;
  const title = line.slice(begin, end);
  return title.length <= CHARACTERS_MAX ? title : "";
}

// Returns true if the conversation @c has one question, its answer, and a title that nobody chose.
export function wantsTitle(c) {
  const nodes = path(c);
  const [question, answer] = nodes;
  return (
    !c.named && nodes.length === 2 && question.role === "user" && answer.role === "assistant" && Boolean(answer.content) && !answer.error
  );
}

// Forgets a title that is being made: the server has something better to do.
export function cancel() {
  clearTimeout(timer);
  controller?.abort();
  controller = null;
}

async function make(c, done) {
  controller = new AbortController();
  const body = {
    model: c.model || undefined,
    messages: [...messages(c), { role: "user", content: ASK }],
    max_tokens: 24,
    temperature: 0,
    reasoning_effort: "none",
    priority: PRIORITY,
  };
  try {
    const answer = await api.post("v1/chat/completions", body, controller.signal);
    const title = titleOf(answer.choices?.[0]?.message?.content ?? "");
    if (title && wantsTitle(c)) done(title);
  } catch {
    // The first words of the question stay the title.
  }
}

// Asks for a title of @c soon; @done gets it. cancel() ends that.
export function soon(c, done) {
  cancel();
  if (wantsTitle(c)) timer = setTimeout(() => make(c, done), IDLE_MS);
}
