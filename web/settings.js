// Stores the user's settings in this browser: the key, the theme, the parameters of new chats.

const NAME = "weft.settings";
const KEY = "weft.key";
const listeners = new Set();

const defaults = { theme: "auto", params: {}, system: "", model: "", hints: true, titles: true };

export const settings = { ...defaults, ...read() };

function read() {
  try {
    const value = JSON.parse(localStorage.getItem(NAME) ?? "{}");
    return value && typeof value === "object" ? value : {};
  } catch {
    return {};
  }
}

export function save(change) {
  Object.assign(settings, change);
  try {
    localStorage.setItem(NAME, JSON.stringify(settings));
  } catch {
    // The browser stores nothing: the settings last as long as the page.
  }
  for (const f of listeners) f();
}

export function onChange(f) {
  listeners.add(f);
}

let key = "";
try {
  key = sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";
} catch {
  key = "";
}

export function apiKey() {
  return key;
}

// Stores the key; with @keep it stays after this tab is closed.
export function setApiKey(value, keep) {
  key = value;
  try {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    if (value) (keep ? localStorage : sessionStorage).setItem(KEY, value);
  } catch {
    // The browser stores nothing.
  }
}

export function keyIsKept() {
  try {
    return localStorage.getItem(KEY) !== null;
  } catch {
    return false;
  }
}

export function applyTheme() {
  if (settings.theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = settings.theme;
}
