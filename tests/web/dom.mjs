// A document for tests of web/*.js without a browser: elements, text nodes and nothing else. It counts
// the nodes that were made.

export const made = { nodes: 0 };

class Node {
  parentNode = null;
  constructor() {
    made.nodes++;
  }
  remove() {
    if (!this.parentNode) return;
    const { childNodes } = this.parentNode;
    childNodes.splice(childNodes.lastIndexOf(this), 1);
    this.parentNode = null;
  }
}

class Text extends Node {
  constructor(data) {
    super();
    this.data = data;
  }
  get textContent() {
    return this.data;
  }
}

class Element extends Node {
  childNodes = [];
  attributes = {};
  dataset = {};
  listeners = [];
  classList = { add() {}, remove() {}, toggle() {} };
  constructor(tag) {
    super();
    this.tagName = tag.toUpperCase();
  }
  get children() {
    return this.childNodes.filter((c) => c instanceof Element);
  }
  get lastChild() {
    return this.childNodes.at(-1) ?? null;
  }
  get textContent() {
    return this.childNodes.map((c) => c.textContent).join("");
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
  }
  addEventListener(name) {
    this.listeners.push(name);
  }
  append(...nodes) {
    for (const n of nodes) {
      const node = n instanceof Node ? n : new Text(String(n));
      node.remove();
      node.parentNode = this;
      this.childNodes.push(node);
    }
  }
  replaceChildren(...nodes) {
    for (const node of [...this.childNodes]) node.remove();
    this.append(...nodes);
  }
  replaceWith(node) {
    const { parentNode } = this;
    const { childNodes } = parentNode;
    node.remove();
    childNodes[childNodes.indexOf(this)] = node;
    node.parentNode = parentNode;
    this.parentNode = null;
  }
}

globalThis.document = {
  createElement: (tag) => new Element(tag),
  createElementNS: (space, tag) => new Element(tag),
};

// Writes a tree as text; text nodes that stand beside each other are one.
export function write(node) {
  if (node instanceof Text) return node.data.replace(/[<&]/g, (c) => `&#${c.charCodeAt(0)};`);
  const { tagName, attributes, className, childNodes } = node;
  const extra = node.disabled ? ` disabled checked=${node.checked}` : "";
  const list = Object.entries(attributes).map(([k, v]) => ` ${k}=${JSON.stringify(v)}`);
  const inner = childNodes.map(write).join("");
  return `<${tagName.toLowerCase()}${className ? ` class=${className}` : ""}${list.join("")}${extra}>${inner}</>`;
}
