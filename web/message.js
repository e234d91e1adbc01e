// Builds the element of one message of a conversation, with the buttons for it.

import { openCalls, siblings } from "./conversation.js";
import { duration, fit, h, iconButton, number } from "./dom.js";
import { figures } from "./figures.js";
import { icon } from "./icons.js";
import { render } from "./markdown.js";

const FINISH = {
  length: "The answer stops here because it has reached its maximum number of tokens.",
  stopped: "Stopped.",
  repetition: "The answer stops here because it only repeated itself.",
  content_filter: "The server stopped the answer.",
};

// @actions: edit(node, text), regenerate(node), answer(node), resume(node), branch(node, step), remove(node), result(node, call, text)
export function messageElement(c, node, actions) {
  const own = node.role === "user";
  const who = own
    ? "You"
    : node.role === "tool"
      ? "Tool result"
      : node.model || c.model || "Assistant";
  const element = h("article", {
    class: `message ${node.role}`,
    "aria-label": who,
    dataset: { id: node.id },
  });
  element.append(
    h("h2", { class: own ? "sr-only" : "who" }, who),
    h("div", { class: "body" }),
    h("footer", { class: "foot" }),
  );
  update(element, c, node, actions, false);
  return element;
}

// Updates @element to the state of @node. @live: the answer is being written.
export function update(element, c, node, actions, live) {
  const body = element.querySelector(".body");
  element.classList.toggle("live", live);
  element.setAttribute("aria-busy", live ? "true" : "false");
  if (node.role === "user") {
    body.replaceChildren(
      bubble(node),
      h("div", { class: "files" }, (node.files ?? []).map(fileElement)),
    );
  } else if (node.role === "tool") {
    body.replaceChildren(h("pre", { class: "result", tabindex: "0" }, node.content));
  } else {
    reasoning(body, node, live);
    text(body, node, live);
    calls(body, c, node, actions, live);
    note(body, node, actions, live);
  }
  element.querySelector(".foot").replaceChildren(
    ...(live ? [statistics(node.stats)].filter(Boolean) : foot(c, node, actions)),
  );
}

const FOLD_LINES = 24;
const FOLD_CHARS = 3000;
const unfolded = new WeakSet(); // messages whose whole text is shown

// Returns the text of a message of the user; the beginning of it, with a button, where it is long.
function bubble(node) {
  const text = h("div", { class: "bubble", hidden: !node.content }, node.content);
  const lines = node.content.split("\n", FOLD_LINES + 1).length;
  if (lines <= FOLD_LINES && node.content.length <= FOLD_CHARS) return text;
  const button = h("button", { type: "button", class: "button unfold" });
  const show = () => {
    const open = unfolded.has(node);
    text.classList.toggle("folded", !open);
    button.textContent = open ? "Show less" : `Show all of it (${number(node.content.length)} characters)`;
    button.setAttribute("aria-expanded", String(open));
  };
  button.addEventListener("click", () => {
    if (!unfolded.delete(node)) unfolded.add(node);
    show();
  });
  show();
  return h("div", { class: "long" }, text, button);
}

function fileElement(file) {
  if (file.picture) return h("img", { class: "picture", src: file.picture, alt: file.name, title: file.name });
  return h(
    "details",
    { class: "file" },
    h("summary", null, file.name),
    h("pre", { tabindex: "0" }, file.text),
  );
}

// Returns the child of @body with this class; makes it, in the order of ORDER, if there is none.
const ORDER = ["reasoning", "text", "calls", "note"];
function part(body, name, make) {
  const found = body.querySelector(`:scope > .${name}`);
  if (found) return found;
  const made = make();
  const after = [...body.children].find(
    (e) => ORDER.findIndex((n) => e.classList.contains(n)) > ORDER.indexOf(name),
  );
  body.insertBefore(made, after ?? null);
  return made;
}

function drop(body, name) {
  body.querySelector(`:scope > .${name}`)?.remove();
}

function reasoning(body, node, live) {
  if (!node.reasoning) return drop(body, "reasoning");
  const box = part(body, "reasoning", () =>
    h(
      "details",
      { class: "reasoning" },
      h("summary", null, h("span", { class: "label" })),
      h("div", { class: "markdown" }),
    ),
  );
  const thinking = live && !node.content && !node.toolCalls?.length;
  const seconds = node.stats?.reasoning;
  box.classList.toggle("thinking", thinking);
  box.querySelector(".label").textContent = thinking
    ? "Thinking"
    : seconds
      ? `Thought for ${duration(seconds)}`
      : "Thought";
  render(box.querySelector(".markdown"), node.reasoning);
}

function text(body, node, live) {
  const box = part(body, "text", () => h("div", { class: "text markdown" }));
  box.classList.toggle(
    "waiting",
    live && !node.content && !node.reasoning && !node.toolCalls?.length,
  );
  if (box.classList.contains("waiting")) {
    if (!box.querySelector(".dots"))
      box.replaceChildren(
        h("span", { class: "wait", role: "status" }),
        h(
          "span",
          { class: "dots", role: "img", "aria-label": "Waiting for the first token" },
          h("i"),
          h("i"),
          h("i"),
        ),
      );
    const wait = box.querySelector(".wait");
    if (wait.textContent !== (node.wait ?? "")) wait.textContent = node.wait ?? "";
    return;
  }
  box.querySelector(".dots")?.remove();
  box.querySelector(".wait")?.remove();
  render(box, node.content);
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function calls(body, c, node, actions, live) {
  if (!node.toolCalls?.length) return drop(body, "calls");
  const box = part(body, "calls", () => h("div", { class: "calls" }));
  if (live) {
    node.toolCalls.forEach((t, i) => showArguments(box, t, i));
    return;
  }
  const open = openCalls(c, node);
  box.replaceChildren(
    ...node.toolCalls.map((t) =>
      callElement(t, pretty(t.arguments), open.includes(t) && resultForm(node, t, actions)),
    ),
  );
}

function callElement(call, text, form) {
  return h(
    "section",
    { class: "call", "aria-label": `Call of ${call.name}` },
    h("div", { class: "call-head" }, icon("tool"), h("code", null, call.name)),
    h("pre", { tabindex: "0" }, text),
    form,
  );
}

// Adds what is new in the arguments of call number @i, which are being written.
function showArguments(box, call, i) {
  const text = call.arguments;
  const written = box.children[i]?.querySelector("pre").firstChild;
  if (written && text.startsWith(written.data)) {
    if (text.length > written.data.length) written.appendData(text.slice(written.data.length));
    return;
  }
  const made = callElement(call, text);
  if (box.children[i]) box.children[i].replaceWith(made);
  else box.append(made);
}

// Builds the form for the result of a call. The page runs no tools: users type or paste results.
function resultForm(node, call, actions) {
  const area = h("textarea", {
    rows: "2",
    placeholder: "Result of the tool",
    "aria-label": `Result of ${call.name}`,
    required: true,
  });
  return h(
    "form",
    {
      class: "result-form",
      onsubmit: (event) => {
        event.preventDefault();
        actions.result(node, call, area.value);
      },
    },
    area,
    h("button", { type: "submit", class: "button" }, "Send result"),
  );
}

function note(body, node, actions, live) {
  const message = node.error || FINISH[node.finish];
  if (live || !message) return drop(body, "note");
  drop(body, "note");
  const again = node.error || !(node.content || node.reasoning || node.toolCalls?.length);
  part(body, "note", () =>
    h(
      "div",
      { class: `note ${node.error ? "error" : ""}`, role: node.error ? "alert" : undefined },
      node.error && icon("alert"),
      h("span", null, message),
      again
        ? h(
            "button",
            { type: "button", class: "button", onclick: () => actions.regenerate(node) },
            "Try again",
          )
        : node.content &&
            h(
              "button",
              { type: "button", class: "button", onclick: () => actions.resume(node) },
              "Continue",
            ),
    ),
  );
}

function branches(c, node, actions) {
  const ids = siblings(c, node);
  if (ids.length < 2) return null;
  const at = ids.indexOf(node.id);
  return h(
    "div",
    { class: "branches", role: "group", "aria-label": "Versions" },
    iconButton("left", "Previous version", () => actions.branch(node, -1), { disabled: at === 0 }),
    h("span", null, `${at + 1} / ${ids.length}`),
    iconButton("right", "Next version", () => actions.branch(node, 1), {
      disabled: at === ids.length - 1,
    }),
  );
}

function statistics(s) {
  if (!s?.output) return null;
  const cached = s.cached ? `, ${number(s.cached)} of them cached` : "";
  const title = `${number(s.prompt)} prompt tokens${cached}; ${number(s.output)} output tokens; first token after ${duration(s.ttft)}`;
  return h(
    "span",
    { class: "stats", title },
    figures(s).join(" · "),
    h("span", { class: "more" }, ` · first after ${duration(s.ttft)}`),
  );
}

function foot(c, node, actions) {
  const buttons = [];
  const copy = iconButton("copy", "Copy", async () => {
    await navigator.clipboard?.writeText(node.content);
    copy.classList.add("done");
    setTimeout(() => copy.classList.remove("done"), 1500);
  });
  if (node.content) buttons.push(copy);
  if (node.role !== "tool") buttons.push(iconButton("edit", "Edit", () => actions.edit(node)));
  if (node.role === "assistant")
    buttons.push(iconButton("retry", "Answer again", () => actions.regenerate(node)));
  else if (node.role === "user" && !node.children.length)
    buttons.push(iconButton("retry", "Answer this", () => actions.answer(node)));
  buttons.push(
    iconButton("trash", "Delete this message and what follows", () => actions.remove(node)),
  );
  return [
    branches(c, node, actions),
    h("div", { class: "actions" }, buttons),
    node.role === "assistant" && statistics(node.stats),
  ].filter(Boolean);
}

// Turns the body of @element into a form; @done(text) or @done(null).
export function editor(element, node, done) {
  const own = node.role === "user";
  const area = h("textarea", {
    class: "edit",
    "aria-label": "Edit the message",
    oninput: () => fit(area, 0.6),
  });
  area.value = node.content;
  const form = h(
    "form",
    {
      class: "edit-form",
      onsubmit: (event) => {
        event.preventDefault();
        done(area.value);
      },
      onkeydown: (event) => {
        if (event.key === "Escape") {
          event.stopPropagation();
          done(null);
        }
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done(area.value);
      },
    },
    area,
    h(
      "div",
      { class: "row" },
      h("button", { type: "button", class: "button", onclick: () => done(null) }, "Cancel"),
      h("button", { type: "submit", class: "button primary" }, own ? "Send" : "Save"),
    ),
  );
  element.querySelector(".body").replaceChildren(form);
  element.querySelector(".foot").replaceChildren();
  fit(area, 0.6);
  area.focus();
}
