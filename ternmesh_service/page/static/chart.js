// Line charts as SVG: lines of {x, y} points, a band, and the values under the pointer.

import { draw, make } from "./dom.js";

const LEFT = 46, BOTTOM = 22, TOP = 8, RIGHT = 10;

/** Round steps for an axis of about `count` ticks, at least `least` apart. */
function ticks(low, high, count, least = 0) {
  const raw = Math.max((high - low || 1) / count, least);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(at);
  return found;
}

const path = (points, x, y) =>
  points.map((point, i) => `${i ? "L" : "M"}${x(point.x).toFixed(1)} ${y(point.y).toFixed(1)}`).join("");

/** Draw into `room`. `lines` have kind (a CSS class), name and points; `band` is low and high points. */
export function chart(room, { lines, band, showX, showY, about, step = 0, most = Infinity }) {
  const width = room.clientWidth || 400, height = room.clientHeight || 200;
  const all = [...lines.flatMap((line) => line.points), ...(band ? [...band.low, ...band.high] : [])];
  room.replaceChildren();
  if (all.length === 0) {
    room.append(make("p", {}, "Nothing was reported yet."));
    return;
  }
  let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const point of all) {
    left = Math.min(left, point.x); right = Math.max(right, point.x);
    low = Math.min(low, point.y); high = Math.max(high, point.y);
  }
  const margin = 0.06 * (high - low || Math.abs(high) || 1);
  [low, high] = [low < 0 ? low - margin : Math.max(0, low - margin), Math.min(most, high + margin)];
  const x = (value) => LEFT + ((value - left) / (right - left || 1)) * (width - LEFT - RIGHT);
  const y = (value) => height - BOTTOM - ((value - low) / (high - low)) * (height - BOTTOM - TOP);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": about });
  for (const at of ticks(low, high, 5)) {
    svg.append(
      draw("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(at), y2: y(at) }),
      draw("text", { x: LEFT - 6, y: y(at) + 4, "text-anchor": "end" }, showY(at)),
    );
  }
  for (const at of ticks(left, right, width / 110, step)) {
    svg.append(draw("text", { x: x(at), y: height - 6, "text-anchor": "middle" }, showX(at)));
  }
  if (band) {
    const outline = path(band.low, x, y) + path([...band.high].reverse(), x, y).replace("M", "L");
    svg.append(draw("path", { class: "band", d: `${outline}Z` }));
  }
  for (const line of lines) svg.append(draw("path", { class: line.kind, d: path(line.points, x, y) }));
  const named = lines.filter((line) => line.name);
  for (const line of named.filter((one) => one.points.length === 1)) {
    const [point] = line.points;
    svg.append(draw("circle", { cx: x(point.x), cy: y(point.y), r: 3, class: line.kind }));
  }
  room.append(svg);
  const cross = draw("line", { class: "cross", y1: TOP, y2: height - BOTTOM });
  const tip = make("div", { class: "tip", hidden: true });
  room.append(tip);
  svg.addEventListener("pointerleave", () => { tip.hidden = true; cross.remove(); });
  svg.addEventListener("pointermove", (event) => {
    const at = (event.offsetX - LEFT) / (width - LEFT - RIGHT) * (right - left) + left;
    const nearest = (points) => points.reduce((a, b) => (Math.abs(b.x - at) < Math.abs(a.x - at) ? b : a));
    const shown = named.filter((line) => line.points.length).map((line) => [line.name, nearest(line.points)]);
    if (!shown.length) return;
    const place = x(shown[0][1].x);
    cross.setAttribute("x1", place); cross.setAttribute("x2", place);
    svg.append(cross);
    tip.replaceChildren(make("b", {}, showX(shown[0][1].x)), ...shown.flatMap(([name, point]) =>
      [make("br"), `${name}: ${showY(point.y)}`]));
    tip.hidden = false;
    tip.style.left = `${Math.min(place + 10, width - tip.offsetWidth)}px`;
    tip.style.top = `${TOP}px`;
  });
}

/** The path of a small curve of values in a box of 100 by 30. */
export function spark(values) {
  const low = Math.min(...values), high = Math.max(...values);
  return values.map((value, i) => {
    const at = (i / (values.length - 1 || 1)) * 96 + 2, up = (value - low) / (high - low || 1);
    return `${i ? "L" : "M"}${at.toFixed(1)} ${(27 - 24 * up).toFixed(1)}`;
  }).join("");
}
