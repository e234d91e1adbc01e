// Makes elements without innerHTML, so that text is always text.

import { icon } from "./icons.js";

// Makes an element: h("div", {class: "x", onclick: f, hidden: true, dataset: {id: 1}}, child, ...).
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child !== null && child !== undefined && child !== false) element.append(child);
  }
}

export function byId(id) {
  return document.getElementById(id);
}

export function iconButton(name, label, onclick, extra) {
  return h(
    "button",
    { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...extra },
    icon(name),
  );
}

// Puts the icon that data-icon names into each element of the page's own markup.
export function fillIcons(root) {
  for (const element of root.querySelectorAll("[data-icon]")) {
    element.prepend(icon(element.dataset.icon));
    if (element.matches("button[aria-label]") && !element.title)
      element.title = element.getAttribute("aria-label");
  }
}

// Makes the text area @area as high as its text, up to @share of the window.
export function fit(area, share) {
  area.style.height = "auto";
  area.style.height = `${Math.min(area.scrollHeight + 2, innerHeight * share)}px`;
}

// Reads @text out through a screen reader.
export function announce(text) {
  byId("announce").textContent = text;
}

export function toast(text, kind) {
  const element = h("div", { class: `toast ${kind ?? ""}` }, text);
  byId("toasts").append(element);
  setTimeout(() => element.remove(), 5000);
}

export function number(n, digits = 0) {
  return n.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// Formats a number with a unit: 1234 becomes "1,234", 1234567 "1.2 M".
export function short(n) {
  if (!Number.isFinite(n)) return "–";
  const units = ["", " k", " M", " G", " T"];
  let i = 0;
  while (Math.abs(n) >= (i ? 999.5 : 10000) && i < units.length - 1) { // 999.5 would be rounded to "1,000"
    n /= 1000;
    i++;
  }
  return number(n, n && i && Math.abs(n) < 100 ? 1 : Math.abs(n) < 10 && n % 1 ? 1 : 0) + units[i];
}

// Formats a time; a line never breaks between a number and its unit.
export function duration(seconds) {
  if (!Number.isFinite(seconds)) return "–";
  if (seconds < 0.001) return `${number(seconds * 1e6)}\u00a0µs`;
  if (seconds < 1) return `${number(seconds * 1000, seconds < 0.1 ? 1 : 0)}\u00a0ms`;
  if (seconds < 60) return `${number(seconds, seconds < 10 ? 2 : 1)}\u00a0s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}\u00a0min ${Math.floor(seconds % 60)}\u00a0s`;
  return `${Math.floor(seconds / 3600)}\u00a0h ${Math.floor((seconds % 3600) / 60)}\u00a0min`;
}
