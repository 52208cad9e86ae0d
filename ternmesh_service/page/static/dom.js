// Small helpers. Text only ever becomes a text node, so that no name or label can be HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element with attributes and children; `onclick` and the like are listeners. */
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Set a text only where it differs: that spares the browser a new layout. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Render what is in `room` anew, and give the focus back to the element at the same place. */
export function keepFocus(room, render) {
  const all = () => [...room.querySelectorAll("button, input, select")];
  const place = all().indexOf(document.activeElement);
  render();
  if (place >= 0 && !room.contains(document.activeElement)) all()[place]?.focus();
}

export function toast(text) {
  const line = make("p", {}, text);
  byId("toast").append(line);
  setTimeout(() => line.remove(), 7000);
}

export const percent = (value, digits = 1) => (value == null ? "–" : `${(100 * value).toFixed(digits)} %`);
export const number = (value, digits = 3) => (value == null ? "–" : Number(value.toPrecision(digits)).toString());

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function size(bytes) {
  if (bytes == null) return "–";
  if (bytes < 1e4) return `${whole.format(bytes)} B`;
  return bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(2)} MB`;
}

export function time(seconds) {
  if (seconds == null) return "–";
  if (seconds < 90) return `${seconds < 10 ? Number(seconds.toFixed(1)) : Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 129600 ? `${(seconds / 3600).toFixed(1)} h` : `${Math.round(seconds / 86400)} days`;
}
