// Opens dialogs. They are the browser's own, which keep the focus and close with Escape.

import { h, iconButton } from "./dom.js";
import { apiKey, applyTheme, keyIsKept, save, setApiKey, settings } from "./settings.js";

function dialog(title, ...children) {
  const back = document.activeElement;
  const id = `dialog-${title.toLowerCase().replace(/\W+/g, "-")}`;
  const element = h(
    "dialog",
    {
      class: "dialog",
      "aria-labelledby": id,
      onclose: () => {
        element.remove();
        back?.focus?.();
      },
    },
    h(
      "div",
      { class: "dialog-head" },
      h("h2", { id }, title),
      iconButton("close", "Close", () => element.close()),
    ),
    ...children,
  );
  document.body.append(element);
  element.showModal();
  return element;
}

function keyFields() {
  const input = h("input", {
    type: "password",
    id: "api-key",
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "none",
  });
  const keep = h("input", { type: "checkbox", id: "keep-key", checked: keyIsKept() });
  input.value = apiKey();
  return {
    input,
    keep,
    row: h(
      "div",
      { class: "field" },
      h("label", { for: "api-key" }, "API key"),
      input,
      h("label", { class: "check" }, keep, "Remember it in this browser after the tab is closed"),
      h("small", null, "The key is sent only to this server."),
    ),
  };
}

// Asks for an API key after a 401, and calls done() once the user has given one.
export function askKey(done) {
  if (document.querySelector("dialog[open]")) return;
  const message = apiKey()
    ? h("p", { class: "refused", role: "alert" }, "The server does not accept this API key.")
    : h("p", null, "This server requires an API key.");
  const { input, keep, row } = keyFields();
  const box = dialog(
    "API key",
    h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          setApiKey(input.value.trim(), keep.checked);
          box.close();
          done();
        },
      },
      message,
      row,
      h(
        "div",
        { class: "row end" },
        h("button", { type: "submit", class: "button primary" }, "Use this key"),
      ),
    ),
  );
  input.focus();
}

export function openSettings({ version, changed, exportAll, importFile, clear }) {
  const { input, keep, row } = keyFields();
  const theme = h(
    "select",
    { id: "theme" },
    [
      ["auto", "Same as the system"],
      ["light", "Light"],
      ["dark", "Dark"],
    ].map(([v, label]) => h("option", { value: v, selected: settings.theme === v }, label)),
  );
  theme.addEventListener("change", () => {
    save({ theme: theme.value });
    applyTheme();
  });
  const titles = h("input", { type: "checkbox", id: "titles", checked: settings.titles });
  titles.addEventListener("change", () => save({ titles: titles.checked }));
  const file = h("input", {
    type: "file",
    accept: "application/json,.json",
    class: "sr-only",
    id: "import-file",
    tabindex: "-1",
    "aria-label": "File to import",
  });
  file.addEventListener("change", () => file.files[0] && importFile(file.files[0]));
  const before = apiKey();
  const box = dialog(
    "Settings",
    row,
    h("div", { class: "field" }, h("label", { for: "theme" }, "Appearance"), theme),
    h(
      "div",
      { class: "field" },
      h("label", { class: "check" }, titles, "The model gives conversations their titles"),
    ),
    h(
      "div",
      { class: "field" },
      h("span", { class: "label" }, "Conversations"),
      h(
        "div",
        { class: "row" },
        h("button", { type: "button", class: "button", onclick: exportAll }, "Export all"),
        h("button", { type: "button", class: "button", onclick: () => file.click() }, "Import…"),
        file,
        h(
          "button",
          {
            type: "button",
            class: "button danger",
            onclick: () =>
              confirmation(
                "Delete all conversations?",
                "They are stored only in this browser. This cannot be undone.",
                "Delete all",
                () => {
                  box.close();
                  clear();
                },
              ),
          },
          "Delete all…",
        ),
      ),
    ),
    h("details", { class: "shortcuts" }, h("summary", null, "Keyboard shortcuts"), shortcuts()),
    h(
      "p",
      { class: "muted" },
      `weft ${version}. This page comes from the server and loads nothing from elsewhere.`,
    ),
  );
  box.addEventListener("close", () => {
    setApiKey(input.value.trim(), keep.checked);
    if (apiKey() !== before) changed();
  });
}

function shortcuts() {
  const rows = [
    ["Enter", "send"],
    ["Shift Enter", "new line"],
    ["Escape", "stop the answer"],
    ["↑ in an empty message", "edit your last one"],
    ["/", "to the message"],
    ["Alt N", "new chat"],
    ["Alt P", "parameters"],
    ["Alt R", "regenerate the answer"],
    ["Alt L", "live view"],
  ];
  return h(
    "dl",
    { class: "keys" },
    rows.flatMap(([k, what]) => [h("dt", null, h("kbd", null, k)), h("dd", null, what)]),
  );
}

export function confirmation(title, text, action, done) {
  const box = dialog(
    title,
    h("p", null, text),
    h(
      "div",
      { class: "row end" },
      h("button", { type: "button", class: "button", onclick: () => box.close() }, "Cancel"),
      h(
        "button",
        {
          type: "button",
          class: "button danger",
          onclick: () => {
            box.close();
            done();
          },
        },
        action,
      ),
    ),
  );
}

export function askExport(asMarkdown, asJson) {
  const box = dialog(
    "Export",
    h(
      "p",
      null,
      "Markdown contains the messages shown now. JSON contains every version of every message and can be imported again.",
    ),
    h(
      "div",
      { class: "row end" },
      h(
        "button",
        {
          type: "button",
          class: "button",
          onclick: () => {
            asMarkdown();
            box.close();
          },
        },
        "Markdown",
      ),
      h(
        "button",
        {
          type: "button",
          class: "button primary",
          onclick: () => {
            asJson();
            box.close();
          },
        },
        "JSON",
      ),
    ),
  );
}

export function askTitle(title, done) {
  const input = h("input", { type: "text", id: "title-input", maxlength: "200" });
  input.value = title;
  const box = dialog(
    "Rename",
    h(
      "form",
      {
        onsubmit: (event) => {
          event.preventDefault();
          box.close();
          done(input.value.trim());
        },
      },
      h("div", { class: "field" }, h("label", { for: "title-input" }, "Title"), input),
      h(
        "div",
        { class: "row end" },
        h("button", { type: "submit", class: "button primary" }, "Rename"),
      ),
    ),
  );
  input.select();
}
