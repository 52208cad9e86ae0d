// The map of links: the host in the middle, and boards and aggregators around it.

import { draw } from "./dom.js";

const WIDTH_MAX = 640, RING = 34, NAMES_MAX = 24, NAMES_NARROW = 10;

/** Draw boards ({board, state: [kind, word]}) into `room`; a dot opens its board. */
export function drawMap(room, boards, fleet, open) {
  const spots = boards.filter(({ board }) => board.name).sort((a, b) => (a.board.name < b.board.name ? -1 : 1));
  const width = Math.min(WIDTH_MAX, room.clientWidth || WIDTH_MAX);
  const namesMax = width < WIDTH_MAX ? NAMES_NARROW : NAMES_MAX;
  const places = ring(spots.length, width / 2 - 45, namesMax);
  const heights = [-40, 40, ...places.map(([, y]) => y)];
  const height = Math.max(...heights) - Math.min(...heights) + 70;
  const middle = [width / 2, 32 - Math.min(...heights)];
  const counts = { good: 0, warn: 0, bad: 0, off: 0 };
  for (const { state } of boards) counts[state[0]] += 1;
  const about = `${boards.length} boards around the host: ${counts.good} heard, ${counts.warn} doubted or paused, ${counts.bad} silent, ${counts.off} revoked`;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${Math.round(height)}`, role: "img", "aria-label": about });
  const dots = [];
  spots.forEach(({ board, state: [kind, word] }, i) => {
    const x = middle[0] + places[i][0], y = middle[1] + places[i][1];
    svg.append(draw("line", { class: `link ${kind}`, x1: middle[0], y1: middle[1], x2: x, y2: y }));
    const signal = board.signal ? `, ${board.signal.rssi_dbm} dBm` : "";
    const size = spots.length > namesMax ? 5 : 8;
    const shape = board.members ? ["rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size }] : ["circle", { cx: x, cy: y, r: size }];
    const region = board.members ? `, adds up ${board.members} boards` : "";
    dots.push(draw(shape[0], { class: `spot ${kind}`, ...shape[1] }, title(`${board.name}: ${word}${region}${signal}`)));
    dots.at(-1).addEventListener("click", () => open(board.name));
    if (spots.length <= namesMax) {
      const below = places[i][1] >= 0 ? 22 : -14;
      dots.push(draw("text", { x, y: y + below, "text-anchor": "middle" }, shortened(board.name)));
    }
  });
  dots.push(draw("circle", { class: "spot hub", cx: middle[0], cy: middle[1], r: 13 }, title(`host${fleet.link ? ` at ${fleet.link}` : ""}`)));
  dots.push(draw("text", { x: middle[0], y: middle[1] + 28, "text-anchor": "middle" }, "host"));
  svg.append(...dots);
  room.replaceChildren(svg);
}

const title = (text) => draw("title", {}, text);
const shortened = (name) => (name.length > 14 ? `${name.slice(0, 13)}…` : name);

/** Places on ellipses around the middle, as many as each has room for. */
function ring(count, wideMax, namesMax) {
  const found = [];
  for (let level = 0; found.length < count; level += 1) {
    const wide = 150 + 1.6 * RING * level, high = 95 + RING * level;
    const here = Math.min(count - found.length, count <= namesMax ? Math.max(count, 1) : Math.floor((2 * Math.PI * high) / 18));
    for (let i = 0; i < here; i += 1) {
      const angle = (2 * Math.PI * (i + (level % 2) / 2)) / here - Math.PI / 2;
      found.push([Math.min(wide, wideMax) * Math.cos(angle), high * Math.sin(angle)]);
    }
  }
  return found;
}
