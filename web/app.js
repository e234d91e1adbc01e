// Controls the page: the open conversation, the answer under way, and the state of the service.

import * as api from "./api.js";
import * as attach from "./attach.js";
import * as conv from "./conversation.js";
import * as dialogs from "./dialogs.js";
import { announce, byId, fillIcons, fit, h, iconButton, toast } from "./dom.js";
import { brief, describe, waiting } from "./figures.js";
import * as live from "./live.js";
import { editor, messageElement, update } from "./message.js";
import * as panel from "./panel.js";
import { applyTheme, save, settings } from "./settings.js";
import * as store from "./store.js";
import * as title from "./title.js";
import * as transfer from "./transfer.js";

let list = []; // of conversations, the newest first
const gone = new WeakSet(); // conversations that were deleted
let current = null;
let running = null; // {controller, node, conversation}
let follows = true; // the view stays at the end
let version = "";
const stateText = {
  starting: "The model is being loaded…",
  replacing: "The worker is being replaced; answers go on in a moment.",
  draining: "The server is stopping.",
  unreachable: "weft does not answer. Trying again…",
};

// ---- list of conversations ----

function groupOf(time) {
  const days = (new Date().setHours(24, 0, 0, 0) - time) / 86400000;
  return days < 1
    ? "Today"
    : days < 2
      ? "Yesterday"
      : days < 8
        ? "This week"
        : days < 31
          ? "This month"
          : "Earlier";
}

function matches(c, words) {
  const text = `${c.title}\n${Object.values(c.nodes)
    .map((n) => n.content ?? "")
    .join("\n")}`.toLowerCase();
  return words.every((w) => text.includes(w));
}

function showList() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const shown = words.length ? list.filter((c) => matches(c, words)) : list;
  const nav = byId("conversations");
  nav.replaceChildren();
  let group = "";
  let items = null;
  for (const c of shown) {
    const name = groupOf(c.updated);
    if (name !== group) {
      group = name;
      items = h("ul");
      nav.append(h("h2", null, name), items);
    }
    const title = c.title || "New chat";
    items.append(
      h(
        "li",
        { class: c === current ? "current" : "" },
        h("a", { href: `#c/${c.id}`, "aria-current": c === current ? "page" : undefined }, title),
        iconButton("edit", `Rename ${title}`, () =>
          dialogs.askTitle(c.title, (text) => rename(c, text)),
        ),
        iconButton("trash", `Delete ${title}`, () => removeConversation(c)),
      ),
    );
  }
  if (!shown.length)
    nav.append(
      h(
        "p",
        { class: "empty" },
        words.length ? "No conversation matches." : "Your conversations will be listed here.",
      ),
    );
}

async function rename(c, text) {
  c.title = text || c.title;
  c.named = true;
  await keep(c);
  showTitle();
  showList();
}

function showTitle() {
  document.title = current.title ? `${current.title} – weft` : "weft";
  byId("title").textContent = current.title || "New chat";
}

// Takes @c from the list; an answer that is being written to it ends and does not bring it back.
function forget(c) {
  gone.add(c);
  if (running?.conversation === c) running.controller.abort();
  list = list.filter((x) => x !== c);
}

function removeConversation(c) {
  dialogs.confirmation(
    "Delete this conversation?",
    `“${c.title || "New chat"}” is stored only in this browser. This cannot be undone.`,
    "Delete",
    async () => {
      forget(c);
      await store.remove(c.id);
      if (c === current) location.hash = "";
      showList();
      announce("Deleted");
    },
  );
}

// Closes @c, which another tab has deleted.
function lose(c) {
  forget(c);
  if (c === current) location.hash = "";
  showList();
}

// Takes over what another tab has stored or removed.
async function follow({ id, nodes, removed }) {
  for (const c of list.filter((c) => removed?.includes(c.id))) lose(c);
  if (removed) return;
  const known = () => list.find((c) => c.id === id);
  const what = await store.read(id, known() && nodes);
  if (!what) return;
  const before = conv.path(current).map((n) => n.id);
  const c = known() ?? { nodes: {} };
  const mine = running?.conversation === c ? running.node.id : undefined;
  conv.merge(c, what.head, what.records, what.gone, mine);
  if (!known()) list.push(c);
  list.sort((a, b) => b.updated - a.updated);
  showList();
  if (c !== current || byId("chat").hidden) return;
  showTitle();
  if (!byId("panel").contains(document.activeElement)) panel.show(c);
  const areas = [...byId("messages").querySelectorAll("textarea")];
  if (areas.some((a) => a.value || a === document.activeElement)) return; // the user writes in it
  if (conv.path(c).map((n) => n.id).join() !== before.join()) return showMessages();
  for (const node of what.records.map((r) => c.nodes[r.id]))
    if (elementOf(node) && node.id !== mine) update(elementOf(node), c, node, actions, false);
  scrollDown();
}

async function keep(c) {
  if (gone.has(c)) return;
  if (!list.includes(c)) list.unshift(c);
  list.sort((a, b) => b.updated - a.updated);
  try {
    if (!(await store.put(c))) lose(c);
  } catch (error) {
    toast(`The browser could not store this conversation: ${error.message}`, "error");
  }
}

// ---- open conversation ----

const actions = {
  edit(node) {
    const element = elementOf(node);
    editor(element, node, (text) => {
      if (text === null || text === node.content || !text.trim()) return showMessages();
      if (node.role === "user") return send(text, node.parent, node.files);
      node.content = text;
      conv.touch(current, node.id);
      keep(current);
      showMessages();
    });
  },
  regenerate: (node) => answer(current, node.parent),
  answer: (node) => answer(current, node.id),
  resume: (node) => answer(current, node.parent, node),
  branch(node, step) {
    conv.select(current, node, step);
    keep(current);
    showMessages();
  },
  remove(node) {
    if (running?.conversation === current) running.controller.abort();
    conv.removeNode(current, node);
    keep(current);
    showMessages();
    announce("Deleted");
  },
  result(node, call, text) {
    const end = conv.path(current).at(-1);
    const made = conv.addNode(current, end.id, {
      role: "tool",
      content: text,
      toolCallId: call.id,
    });
    keep(current);
    showMessages();
    if (!conv.openCalls(current, node).length) answer(current, made.id);
  },
};

function elementOf(node) {
  return byId("messages").querySelector(`[data-id="${CSS.escape(node.id)}"]`);
}

const IDEAS = [
  "Explain how a loom works, in five steps.",
  "Write a shell script that finds the ten largest files.",
  "Compare three ways to store time series, in a table.",
  "What should I ask before I refactor old code?",
];

function emptyState() {
  return h(
    "div",
    { class: "welcome" },
    h("img", { src: "web/icon.svg", alt: "", width: "56", height: "56" }),
    h("h2", null, "What shall we work on?"),
    h(
      "p",
      { class: "muted" },
      "Answers are made on this server; conversations stay in your browser.",
    ),
    h(
      "ul",
      { class: "ideas" },
      IDEAS.map((text) =>
        h(
          "li",
          null,
          h(
            "button",
            {
              type: "button",
              onclick: () => {
                byId("input").value = text;
                grow();
                byId("input").focus();
              },
            },
            text,
          ),
        ),
      ),
    ),
  );
}

function showMessages() {
  const box = byId("messages");
  const nodes = conv.path(current);
  box.replaceChildren(
    ...(nodes.length ? nodes.map((n) => messageElement(current, n, actions)) : [emptyState()]),
  );
  showTitle();
  if (running?.conversation === current && elementOf(running.node))
    update(elementOf(running.node), current, running.node, actions, true);
  showButtons();
  scrollDown();
}

function open(c) {
  current = c;
  follows = true;
  panel.show(c);
  showMessages();
  showList();
  showModel();
}

function newChat() {
  // At once: "hashchange" comes later, and what is sent before it would go to the old conversation.
  if (location.hash && location.hash !== "#") history.pushState(null, "", "#");
  route();
  byId("input").focus();
}

// ---- answers ----

function showButtons() {
  const busy = running !== null;
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
}

function scrollDown() {
  const box = byId("messages");
  if (follows) box.scrollTop = box.scrollHeight;
}

// ---- files of the next message ----

let attached = []; // {name, text} or {name, picture}

function showAttached() {
  byId("attached").replaceChildren(
    ...attached.map((f) =>
      h(
        "li",
        null,
        f.picture ? h("img", { src: f.picture, alt: "" }) : null,
        h("span", null, f.name),
        iconButton("close", `Remove ${f.name}`, () => {
          attached = attached.filter((other) => other !== f);
          showAttached();
          byId("input").focus();
        }),
      ),
    ),
  );
}

// Returns false if it is known that the chat's model reads only text.
function sees() {
  const model = models.find((m) => m.id === current?.model);
  return !model?.capabilities || model.status?.value === "unloaded" || model.capabilities.includes("multimodal");
}

async function attachFiles(files) {
  await firstAnswer; // it tells whether the model sees
  for (const file of files) {
    try {
      if (attached.length >= attach.FILES_MAX)
        throw new Error(`A message takes at most ${attach.FILES_MAX} files.`);
      attached.push(await attach.read(file, sees()));
    } catch (error) {
      toast(error.message, "error");
    }
  }
  showAttached();
  if (attached.length) announce(`${attached.length} files are attached.`);
}

// A file is chosen, pasted or dropped.
function bindFiles() {
  const chosen = byId("files");
  byId("attach").addEventListener("click", () => chosen.click());
  chosen.addEventListener("change", () => {
    attachFiles([...chosen.files]);
    chosen.value = "";
  });
  byId("input").addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    attachFiles(files);
  });
  const chat = byId("chat");
  const holds = (event) => event.dataTransfer?.types.includes("Files");
  for (const name of ["dragenter", "dragover", "dragleave", "drop"])
    chat.addEventListener(name, (event) => {
      if (!holds(event)) return;
      event.preventDefault();
      chat.classList.toggle("drop", name === "dragenter" || name === "dragover");
      if (name === "drop") attachFiles([...event.dataTransfer.files]);
    });
}

async function send(text, parent, files) {
  const at = parent ?? conv.path(current).at(-1)?.id ?? "";
  const node = conv.addNode(current, at, { role: "user", content: text, files });
  if (location.hash !== `#c/${current.id}`) history.replaceState(null, "", `#c/${current.id}`);
  keep(current).then(showList);
  await answer(current, node.id);
}

function take(node, chunk, times) {
  const delta = chunk.choices?.[0]?.delta ?? {};
  const now = performance.now();
  const words = delta.content || delta.reasoning_content || delta.tool_calls;
  if (words && !times.first) times.first = now;
  if (words) times.last = now;
  if (delta.reasoning_content) node.reasoning = (node.reasoning ?? "") + delta.reasoning_content;
  if ((delta.content || delta.tool_calls) && node.reasoning && !times.thought) times.thought = now;
  if (delta.content) node.content += delta.content;
  for (const t of delta.tool_calls ?? []) {
    node.toolCalls ??= [];
    const call = (node.toolCalls[t.index] ??= { id: t.id, name: "", arguments: "" });
    call.name += t.function?.name ?? "";
    call.arguments += t.function?.arguments ?? "";
  }
  if (chunk.model) node.model = chunk.model;
  if (chunk.choices?.[0]?.finish_reason) node.finish = chunk.choices[0].finish_reason;
  if (chunk.choices?.[0]?.loop_ended) node.finish = "repetition";
  if (chunk.usage) times.usage = chunk.usage;
}

// Returns the context of @c's model in tokens; 0: not known.
function contextOf(c) {
  return models.find((m) => m.id === c.model)?.max_model_len ?? 0;
}

function statistics(times, context) {
  const u = times.usage;
  const seconds = (a, b) => (a && b ? (b - a) / 1000 : 0);
  return {
    prompt: u?.prompt_tokens ?? 0,
    cached: u?.prompt_tokens_details?.cached_tokens ?? 0,
    output: u?.completion_tokens ?? 0,
    ttft: seconds(times.begin, times.first),
    decode: seconds(times.first, times.last),
    reasoning: seconds(times.first, times.thought ?? times.last),
    context,
  };
}

const SAVE_MS = 2000;

// Stores the answer @node of @c at once, and again while it grows: soon at first, so that a page that is
// left after a moment loses little of it.
function saveOften(c, node) {
  let timer = null;
  const saveAfter = (ms) => {
    timer = setTimeout(() => saveAfter(Math.min(2 * ms, SAVE_MS)), ms);
    if (gone.has(c)) return;
    conv.touch(c, node.id);
    store.put(c).then((there) => there || lose(c), () => {});
  };
  saveAfter(250);
  return { stop: () => clearTimeout(timer) };
}

// Requests an answer to the message @parent of @c. @resumed: the answer to be continued, if any.
async function answer(c, parent, resumed) {
  if (running) running.controller.abort();
  title.cancel();
  let body;
  try {
    body = {
      model: c.model || undefined,
      messages: conv.messages(c, parent),
      ...panel.fields(c.params),
      prompt_cache_key: c.id,
    };
  } catch (error) {
    toast(error.message, "error");
    return;
  }
  const node = resumed ?? conv.addNode(c, parent, { role: "assistant" });
  if (resumed) {
    body.messages.push({ role: "assistant", content: node.content });
    body.continue_final_message = true;
    body.add_generation_prompt = false;
  }
  node.finish = node.error = undefined;
  node.writing = true;
  const job = { controller: new AbortController(), node, conversation: c };
  const times = { begin: performance.now() };
  running = job;
  follows = true;
  if (c === current) showMessages();
  // The text that has come outlives the page.
  const saving = saveOften(c, node);
  let drawing = false;
  const draw = () => {
    drawing = false;
    const element = c === current && running === job ? elementOf(node) : null;
    node.stats = statistics(times, contextOf(c));
    if (element) update(element, c, node, actions, true);
    scrollDown();
  };
  const drawSoon = () => {
    if (!drawing) requestAnimationFrame(draw);
    drawing = true;
  };
  try {
    node.request = await api.stream(
      body,
      job.controller.signal,
      (chunk) => {
        take(node, chunk, times);
        drawSoon();
      },
      (comment) => {
        node.wait = waiting(comment);
        drawSoon();
      },
    );
  } catch (error) {
    if (error.name === "AbortError") node.finish = "stopped";
    else failed(node, error);
  }
  saving.stop();
  node.stats = statistics(times, contextOf(c));
  delete node.wait;
  delete node.writing;
  if (running === job) running = null;
  if (c.nodes[node.id]) {
    c.updated = Date.now();
    conv.touch(c, node.id);
    await keep(c);
  }
  if (c === current) showMessages();
  showList();
  if (models.some((m) => m.status)) connect();
  if (!running && settings.titles)
    title.soon(c, (text) => {
      c.title = text;
      if (c.nodes[node.id]) keep(c);
      if (c === current && !byId("chat").hidden) showTitle();
      showList();
    });
  announce(
    node.error
      ? `The answer failed: ${node.error}`
      : node.finish === "stopped"
        ? "Stopped"
        : "The answer is complete.",
  );
}

function failed(node, error) {
  const wait = error.retryMs ? ` Try again in ${Math.ceil(error.retryMs / 1000)} s.` : "";
  node.error =
    error instanceof api.ApiError ? error.message + wait : `The page has an error: ${error.message}`;
  if (error.status === 401) dialogs.askKey(connect);
}

// ---- models and the service ----

let models = [];
let firstAnswer = null; // a promise: the server was asked once for its state, and for its models if it serves

function showModel() {
  const select = byId("model");
  const names = models.length ? models : [{ id: current?.model || "…" }];
  const state = { loading: " (loading)", unloaded: " (not loaded)", failed: " (failed)" };
  select.replaceChildren(
    ...names.map((m) => h("option", { value: m.id }, m.id + (state[m.status?.value] ?? ""))),
  );
  if (current && !models.some((m) => m.id === current.model))
    current.model = models.some((m) => m.id === settings.model)
      ? settings.model
      : (models[0]?.id ?? current.model);
  if (current) select.value = current.model;
  select.disabled = models.length < 2;
  showAbout();
}

// Shows the size and context of the chat's model below its name.
function showAbout() {
  const model = models.find((m) => m.id === byId("model").value);
  byId("about").textContent = brief(model);
  byId("about").title = byId("model").title = describe(model);
}

async function connect() {
  try {
    const served = (await api.get("v1/models")).data ?? [];
    byId("banner").hidden = true;
    if (JSON.stringify(served) !== JSON.stringify(models)) {
      models = served;
      showModel();
    }
    const props = await api.get("props");
    panel.showDefaults(props.default_generation_settings?.params, props.sampling_source, props.reasoning);
  } catch (error) {
    if (error.status === 401) dialogs.askKey(connect);
  }
}

let lastState = "";

async function watch() {
  const state = await api.health();
  const element = byId("service");
  element.dataset.state = state.state;
  element.textContent =
    state.state === "serving"
      ? ""
      : ({ starting: "loading", replacing: "restarting", failed: "failed", draining: "stopping" }[
          state.state
        ] ?? "offline");
  const text =
    state.state === "failed"
      ? `The model cannot be loaded: ${state.reason}${state.reason.endsWith("?") ? "" : "."}`
      : stateText[state.state];
  byId("banner").hidden = !text;
  byId("banner").textContent = text ?? "";
  const asks = state.state === "serving" && (lastState !== "serving" || models.some((m) => m.status));
  lastState = state.state;
  setTimeout(watch, state.state === "serving" ? 10000 : 1500);
  if (asks) await connect();
}

// ---- layout, keyboard and start ----

function grow() {
  fit(byId("input"), 0.4);
}

function toggleSidebar(shown) {
  const leaves =
    document.body.classList.contains("sidebar-open") &&
    byId("sidebar").contains(document.activeElement);
  if (!shown && leaves) byId("sidebar-open").focus(); // before its own place disappears
  document.body.classList.toggle("sidebar-open", shown);
  byId("scrim").hidden = !shown;
  if (shown) byId("new-chat").focus();
}

function togglePanel(shown = byId("panel").hidden) {
  byId("panel").hidden = !shown;
  byId("panel-open").setAttribute("aria-expanded", String(shown));
  document.body.classList.toggle("panel-open", shown);
  if (shown) byId("param-system").focus();
  else byId("panel-open").focus();
}

function route() {
  const isLive = location.hash === "#live";
  byId("live").hidden = !isLive;
  byId("chat").hidden = isLive;
  document.body.classList.toggle("is-live", isLive);
  byId("live-link").toggleAttribute("aria-current", isLive);
  toggleSidebar(false);
  if (isLive) {
    if (!byId("panel").hidden) togglePanel(false);
    document.title = "Live view – weft";
    byId("title").textContent = "Live view";
    live.start(byId("live"));
    if (!current) current = conv.create(settings);
    showList();
    return;
  }
  live.stop();
  const id = location.hash.match(/^#c\/(.+)$/)?.[1];
  open(list.find((c) => c.id === id) ?? conv.create(settings));
}

async function importFile(file) {
  try {
    const made = transfer.importJson(await file.text());
    for (const c of made) await keep(c);
    showList();
    toast(
      made.length === 1 ? "One conversation imported." : `${made.length} conversations imported.`,
    );
    document.querySelector("dialog")?.close();
    location.hash = `#c/${made[0].id}`;
  } catch (error) {
    toast(`This file cannot be imported: ${error.message}`, "error");
  }
}

function editLast() {
  const node = conv.path(current).findLast((n) => n.role === "user");
  if (node) actions.edit(node);
}

function keys(event) {
  const inDialog = document.querySelector("dialog[open]");
  const typing = event.target.matches("input, textarea, select") || inDialog;
  const alt = event.altKey && !event.ctrlKey && !event.metaKey;
  const last = current && conv.path(current).at(-1);
  if (event.key === "Escape" && inDialog) return; // it closes, and nothing behind it
  if (event.key === "Escape" && running) running.controller.abort();
  else if (event.key === "Escape" && document.body.classList.contains("sidebar-open"))
    toggleSidebar(false);
  else if (event.key === "Escape" && !byId("panel").hidden && byId("panel").contains(event.target))
    togglePanel(false);
  else if (alt && event.code === "KeyN") newChat();
  else if (alt && event.code === "KeyP") togglePanel();
  else if (alt && event.code === "KeyL") location.hash = "#live";
  else if (alt && event.code === "KeyR" && last?.role === "assistant") actions.regenerate(last);
  else if (event.key === "/" && !typing) byId("input").focus();
  else return;
  event.preventDefault();
}

function bind() {
  const input = byId("input");
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value;
    if ((!text.trim() && !attached.length) || running) return;
    const files = attached.length ? attached : undefined;
    input.value = "";
    attached = [];
    showAttached();
    grow();
    send(text, undefined, files);
  });
  input.addEventListener("input", grow);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      byId("composer").requestSubmit();
    } else if (event.key === "ArrowUp" && !input.value) {
      event.preventDefault();
      editLast();
    }
  });
  bindFiles();
  byId("stop").addEventListener("click", () => running?.controller.abort());
  byId("new-chat").addEventListener("click", newChat);
  byId("search").addEventListener("input", showList);
  byId("sidebar-open").addEventListener("click", () => toggleSidebar(true));
  byId("sidebar-close").addEventListener("click", () => toggleSidebar(false));
  byId("scrim").addEventListener("click", () => toggleSidebar(false));
  byId("panel-open").addEventListener("click", () => togglePanel());
  byId("export-open").addEventListener("click", () =>
    dialogs.askExport(
      () => transfer.exportMarkdown(current),
      () => transfer.exportJson([current]),
    ),
  );
  byId("settings-open").addEventListener("click", () =>
    dialogs.openSettings({
      version,
      changed: connect,
      exportAll: () => transfer.exportJson(list),
      importFile,
      clear: clearAll,
    }),
  );
  byId("model").addEventListener("change", (event) => {
    current.model = event.target.value;
    showAbout();
    save({ model: current.model });
    if (list.includes(current)) keep(current);
  });
  const box = byId("messages");
  box.addEventListener("scroll", () => {
    follows = box.scrollHeight - box.scrollTop - box.clientHeight < 60;
    byId("to-end").hidden = follows;
  });
  byId("to-end").addEventListener("click", () => {
    follows = true;
    scrollDown();
  });
  addEventListener("hashchange", route);
  addEventListener("keydown", keys);
  addEventListener("beforeunload", (event) => running && event.preventDefault());
}

async function clearAll() {
  const ids = list.map((c) => c.id);
  list.forEach(forget);
  await store.remove(...ids);
  location.hash = "";
  route();
}

async function main() {
  applyTheme();
  fillIcons(document);
  panel.build(
    () => {
      panel.take(current);
      if (list.includes(current)) keep(current);
    },
    () => togglePanel(false),
    () => {
      save({ params: current.params, system: current.system });
      toast("New chats will use these parameters.");
    },
  );
  if (!(await store.open(follow)))
    toast("This browser keeps no conversations: they last as long as this page.", "error");
  list = (await store.all()).map(conv.wake).sort((a, b) => b.updated - a.updated);
  bind();
  route();
  firstAnswer = watch();
  try {
    version = (await api.get("version")).version;
  } catch {
    version = "";
  }
}

main();
