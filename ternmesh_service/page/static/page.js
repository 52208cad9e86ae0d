// The page of a fleet, or of one board: keeps the parts that the server sends, and shows them.

import { chart, spark } from "./chart.js";
import { byId, draw, keepFocus, make, number, percent, say, size, time, toast } from "./dom.js";
import { act, follow, mayAct } from "./feed.js";
import { labelling } from "./label.js";
import { drawMap } from "./map.js";

const BOARD = "board ", ROUND = "round ";
const NO_TOKEN = "Read only: open the address that `ternmesh page` prints.";
const SPARK_MAX = 30; // rounds in the small curve of a board
const CURVES_AT_ONCE = 80;
const LINES_MAX = 60; // boards with a line of their own in a chart; above, a band
const parts = { fleet: {}, alarms: [] };
const boards = new Map(), rounds = new Map(); // by name and by number
const rows = new Map(); // of the table, by board
let order = { key: "name", down: false };
let chosen = ""; // the board whose details are open
let waiting = false, later = 0;
const stale = new Set(); // boards whose small curve is not the newest
let line = []; // the rounds in their order
let series = new Map(); // loss and accuracy as [{round, value}] by board, "" for the fleet
let drawn = ""; // what the map shows

// What was reported

/** Sort the rounds, and what each board reported in them. */
function learn() {
  line = [...rounds.values()].sort((a, b) => a.version - b.version);
  series = new Map();
  const note = (name, round, both) => {
    if (!series.has(name)) series.set(name, [[], []]);
    const kept = series.get(name);
    for (const which of [0, 1]) if (both[which] != null) kept[which].push({ round, value: both[which] });
  };
  for (const round of line) {
    note("", round, round.reports ? [round.loss, round.accuracy] : [round.metric_loss ?? round.loss, round.metric]);
    for (const name in round.reports) note(name, round, round.reports[name]);
  }
}

/** The values of a board, or the medians of the fleet. `which`: 0 loss, 1 accuracy. */
const values = (name, which) => series.get(name)?.[which] ?? [];

const ago = (at) => (at == null ? null : Math.max(0, Date.now() / 1000 - at));

// The table of boards

const COLUMNS = [
  { key: "name", head: "Board", sort: (b) => b.name },
  { key: "state", head: "State", sort: (b) => ["bad", "warn", "good", "off"].indexOf(b.state[0]) + b.state[1] },
  { key: "accuracy", head: "Accuracy", sort: (b) => -(last(b.name) ?? -1) },
  { key: "weight", head: "Weight", sort: (b) => b.weight },
  { key: "heard", head: "Heard", sort: (b) => -(b.heard_at ?? 0) },
  { key: "rounds", head: "Rounds", sort: (b) => -b.rounds_counted, number: true },
  { key: "up", head: "Sent", sort: (b) => -b.bytes_up, number: true },
  { key: "air", head: "Airtime", sort: (b) => -(b.report.airtime_s ?? 0) },
  { key: "link", head: "Link", sort: (b) => b.signal?.rssi_dbm ?? 0 },
];
const last = (name) => values(name, 1).at(-1)?.value;

function makeHeads() {
  byId("heads").append(...COLUMNS.map(({ key, head, number: isNumber }) =>
    make("th", { scope: "col", class: isNumber ? "number" : null, "data-key": key },
      make("button", { onclick: () => { order = { key, down: order.key === key && !order.down }; arrange(); } }, head))));
}

function makeRow(board) {
  const cells = {};
  const row = make("tr", { "data-board": board.name }, ...COLUMNS.map(({ key, head, number: isNumber }) =>
    (cells[key] = make("td", { "data-head": head, class: isNumber ? "number" : null }))));
  cells.name.append(make("button", { class: "name", onclick: () => open(board.name) }, board.name));
  cells.version = make("small");
  cells.name.append(cells.version);
  cells.word = make("span", { class: "state" });
  cells.state.append(cells.word);
  cells.text = make("span");
  cells.line = make("span", { class: "spark" });
  cells.accuracy.append(cells.line, " ", cells.text);
  cells.share = make("span"); cells.reason = make("small");
  cells.weight.append(cells.share, cells.reason);
  cells.spent = make("span"); cells.left = make("small");
  cells.air.append(cells.spent, cells.left);
  return { row, cells };
}

function showBoard(board) {
  if (!rows.has(board.name)) rows.set(board.name, makeRow(board));
  const { cells } = rows.get(board.name);
  const [kind, word] = board.state;
  cells.word.className = `state ${kind}`;
  say(cells.word, word);
  const versions = [board.software && board.software !== parts.fleet.software && `ternmesh ${board.software}`,
    board.behind && "settings not taken yet"].filter(Boolean);
  say(cells.version, versions.join("; "));
  say(cells.share, percent(board.weight, 0));
  say(cells.reason, board.reason + (board.since ? `, since ${board.since}` : ""));
  say(cells.rounds, `${board.rounds_counted}${board.rounds_missed ? ` (${board.rounds_missed} missed)` : ""}`);
  say(cells.up, size(board.bytes_up || null));
  say(cells.spent, time(board.report.airtime_s));
  say(cells.left, board.report.airtime_left_s == null ? "" : `${time(board.report.airtime_left_s)} left this hour`);
  const signal = board.signal && `${board.signal.rssi_dbm} dBm${board.signal.snr_db == null ? "" : `, ${board.signal.snr_db} dB`}`;
  say(cells.link, signal ?? (board.members ? `adds up ${board.members} boards` : parts.fleet.link ? "network" : "–"));
  showHeard(board);
  if (board.report.airtime_s != null) byId("boards").classList.remove("no-air");
}

function showCurve(board) {
  const { cells } = rows.get(board.name);
  const known = values(board.name, 1).map(({ value }) => value);
  say(cells.text, known.length > 1 ? `${percent(known[0], 0)} → ${percent(known.at(-1))}` : percent(known[0]));
  if (known.length > 1) {
    let path = cells.line.querySelector("path");
    if (!path) {
      path = draw("path");
      cells.line.append(draw("svg", { viewBox: "0 0 100 30", preserveAspectRatio: "none", "aria-hidden": "true" }, path));
    }
    path.setAttribute("d", spark(known.slice(-SPARK_MAX)));
  } else cells.line.replaceChildren();
}

/** Show the small curves that are not new, some at a time, so that a large fleet stays fluent. */
function showCurvesOfRows() {
  clearTimeout(later);
  for (const name of [...stale].slice(0, CURVES_AT_ONCE)) {
    stale.delete(name);
    if (rows.has(name)) showCurve(boards.get(name));
  }
  if (stale.size) later = setTimeout(showCurvesOfRows, 30);
}

function showHeard(board) {
  const seconds = ago(board.heard_at);
  say(rows.get(board.name).cells.heard, seconds == null ? "not yet" : `${time(seconds)} ago`);
}

/** Put the rows in order, and hide those that do not match; rows in place are left alone. */
function arrange() {
  const text = byId("find").value.trim().toLowerCase();
  const { sort } = COLUMNS.find(({ key }) => key === order.key);
  const keyed = [...boards.values()].map((board) => [sort(board), board.name]);
  keyed.sort(([a, x], [b, y]) => (a < b ? -1 : a > b ? 1 : x < y ? -1 : 1) * (order.down ? -1 : 1));
  const body = byId("rows"), focused = document.activeElement;
  let hits = 0;
  keyed.forEach(([, name], i) => {
    const { row } = rows.get(name);
    row.hidden = !name.toLowerCase().includes(text) && !boards.get(name).state[1].includes(text);
    hits += !row.hidden;
    if (body.children[i] !== row) body.insertBefore(row, body.children[i] ?? null);
  });
  if (document.activeElement !== focused && focused.isConnected) focused.focus(); // its row was moved
  byId("no-boards").hidden = hits > 0;
  for (const head of byId("heads").children) {
    const isIt = head.dataset.key === order.key;
    if (isIt) head.setAttribute("aria-sort", order.down ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  }
}

// The rest of the page

function showFleet() {
  const { fleet } = parts;
  const isHost = fleet.role === "host";
  document.title = `${isHost ? fleet.fleet : fleet.name} – ternmesh`;
  say(byId("title"), isHost ? `Fleet ${fleet.fleet}` : `Board ${fleet.name}`);
  const of = fleet.rounds ? ` of ${fleet.rounds}` : "";
  say(byId("about"), `model ${fleet.model}, run ${String(fleet.run).slice(0, 8)}${isHost ? `, ${boards.size} boards` : `, fleet ${fleet.fleet}`}`);
  byId("progress").value = fleet.rounds ? fleet.version / fleet.rounds : 0;
  byId("progress").hidden = !fleet.rounds;
  const missing = [...boards.values()].filter((b) => b.active && b.delivered === "none").map((b) => b.name);
  const left = fleet.deadline_at ? `, ${time(Math.max(0, fleet.deadline_at - Date.now() / 1000))} left` : "";
  const late = fleet.phase === "open" && missing.length ? `; waits for ${some(missing)}` : "";
  say(byId("phase"), !isHost || fleet.phase === "open" ? `Global update ${fleet.version}${of}: ${fleet.activity ?? (isHost ? "a round is open" : fleet.phase)}${left}${late}`
    : fleet.phase === "finished" ? `Finished after ${fleet.version} rounds. Next: \`ternmesh export\` writes what was learned as a model.`
      : `${fleet.version ? "Waiting" : "Starting"}: ${counted().here} of the ${fleet.min_peers} boards that a round needs are here`);
  say(byId("foot"), `ternmesh ${fleet.software ?? ""}${fleet.rule ? `, aggregation ${fleet.rule}` : ""}, ${fleet.refused} frames refused${fleet.returned ? `; ${fleet.returned}` : ""}${mayAct() ? "" : `. ${NO_TOKEN}`}`);
  showRelease(fleet.release);
}

/** How many boards are enrolled, and how many of them a round waits for. */
function counted() {
  const members = [...boards.values()].filter((board) => !board.revoked);
  return { all: members.length, here: members.filter((board) => board.active).length };
}

const some = (names) => names.slice(0, 4).join(", ") + (names.length > 4 ? ` and ${names.length - 4} more` : "");

function showAlarms() {
  const { alarms } = parts;
  byId("alarm-section").hidden = false;
  keepFocus(byId("alarms"), () => byId("alarms").replaceChildren(...(alarms.length ? alarms : [{ level: "none", text: "None: all is well." }]).map((alarm) =>
    make("li", { class: alarm.level },
      alarm.about ? make("button", { class: "name", onclick: () => open(alarm.about) }, alarm.about) : null,
      `${alarm.about ? ": " : ""}${alarm.text}`,
      alarm.advice ? make("span", { class: "advice" }, alarm.advice) : null))));
}

const isShare = () => /accuracy|share/.test(parts.fleet.metric_name ?? "accuracy");
const metricName = () => (isShare() ? "Accuracy" : parts.fleet.metric_name.replaceAll("_", " "));
const shownMetric = (value) => (isShare() ? percent(value) : number(value));

function showTiles() {
  const { fleet } = parts, figures = fleet.metrics ?? {}, { all, here } = counted();
  const known = values("", 1), first = known[0]?.value, now = known.at(-1)?.value;
  const newest = line.at(-1), follows = fleet.voters?.follows;
  const spent = line.reduce((sum, round) => sum + round.bytes_up + round.bytes_down, 0);
  const gained = now == null ? null : 100 * (now - first);
  const tiles = [
    [metricName() + (fleet.metric_samples ? ` of ${fleet.metric_samples} samples` : ""), shownMetric(now ?? fleet.metric), first == null || known.length < 2 ? "" : isShare()
      ? `${gained < 0 ? "" : "+"}${gained.toFixed(1)} points since round ${known[0].round.version}` : `${shownMetric(first)} in round ${known[0].round.version}`],
    fleet.role === "host" ? ["Boards", fleet.phase === "finished" ? String(all) : `${here} of ${all}`, fleet.phase === "finished" ? "took part" : "at work"]
      : ["Samples", String(fleet.samples ?? "–"), fleet.source?.waiting == null ? "" : `${fleet.source.waiting} wait for a label`],
    // A voter that follows hears no boards.
    follows ? ["Data and times", "–", `${fleet.voters.leader} has them`] : ["Data sent", newest ? size(spent) : "–", newest ? `${size(newest.bytes_up + newest.bytes_down)} in the newest round` : ""],
  ];
  if (fleet.role === "host" && !follows) tiles.push(["Time of a round", time(figures.round_latency_s), "mean of the newest ten"]);
  if (fleet.voters) tiles.push(["Hosts", `${fleet.voters.all - fleet.voters.missing.length} of ${fleet.voters.all}`,
    `${fleet.voters.leader} leads${fleet.voters.missing.length ? `; ${some(fleet.voters.missing)} away` : ""}`]);
  if (fleet.airtime_us != null) tiles.push(["Airtime here", time(fleet.airtime_us / 1e6),
    fleet.airtime_left_us == null ? "no limit" : `${time(fleet.airtime_left_us / 1e6)} left this hour`]);
  byId("tiles").replaceChildren(...tiles.map(([name, value, note]) =>
    make("div", { class: "tile" }, make("dt", {}, name), make("dd", {}, value), note ? make("dd", { class: "note" }, note) : null)));
}

/** For each round, where it lies on the axis that the reader chose. */
function places() {
  const over = byId("over").value, found = new Map();
  let sum = 0;
  for (const round of line) {
    if (over === "bytes" || over === "air") sum += round.bytes_up + round.bytes_down;
    if (over === "seconds") sum += round.seconds;
    found.set(round, over === "version" ? round.version : over === "air" ? sum * parts.fleet.air_s_per_byte : sum);
  }
  return found;
}

function curve(room, which, name, place) {
  const points = (board) => values(board, which).map(({ round, value }) => ({ x: place.get(round), y: value }));
  const lines = [], fleet = points("");
  let band = null;
  if (boards.size <= LINES_MAX) for (const board of boards.keys()) lines.push({ kind: "board-line", points: points(board) });
  else {
    band = { low: [], high: [] };
    for (const [round, x] of place) {
      const all = Object.values(round.reports ?? {}).map((row) => row[which]).filter((v) => v != null).sort((a, b) => a - b);
      if (!all.length) continue;
      band.low.push({ x, y: all[Math.floor(0.1 * (all.length - 1))] });
      band.high.push({ x, y: all[Math.ceil(0.9 * (all.length - 1))] });
    }
  }
  lines.push({ kind: "fleet-line", name: boards.size ? "fleet" : parts.fleet.name, points: fleet });
  if (name) lines.push({ kind: "one-line", name, points: points(name) });
  const share = which === 1 && isShare(), show = share ? (v) => percent(v, 0) : (v) => number(v);
  const what = which ? metricName().toLowerCase() : "loss";
  const about = fleet.length ? `The ${what} goes from ${show(fleet[0].y)} to ${show(fleet.at(-1).y)} in ${fleet.length} rounds.` : `No ${what} yet.`;
  const over = byId("over").value;
  chart(room, { lines, band, about, showY: share ? (v) => percent(v, v === Math.round(v) ? 0 : 1) : show,
    step: over === "version" ? 1 : 0, most: share ? 1 : Infinity, showX: { version: (v) => String(Math.round(v)), bytes: size }[over] ?? time });
}

function showCurves() {
  byId("curves").hidden = rounds.size === 0;
  if (rounds.size === 0) return;
  say(byId("metric-name"), metricName());
  byId("over-air").hidden = !parts.fleet.air_s_per_byte;
  const place = places(), name = byId("one").value;
  curve(byId("accuracy"), 1, name, place);
  curve(byId("loss"), 0, name, place);
  if (chosen && byId("detail").open) showDetailCurve(place);
}

function showRounds() {
  byId("round-section").hidden = parts.fleet.role !== "host" || rounds.size === 0;
  const newest = line.slice(-8).reverse();
  const heads = ["Round", "Boards", "Missing", "Accuracy", "Loss", "Up", "Down", "Time"];
  byId("round-rows").replaceChildren(...newest.map((round) => make("tr", {}, ...[
    String(round.version), String(round.counted), some(round.missing ?? []) || "none", percent(round.accuracy), number(round.loss),
    size(round.bytes_up || null), size(round.bytes_down || null), time(round.seconds || null),
  ].map((text, i) => make("td", { "data-head": heads[i] }, text)))));
}

function showRelease(release) {
  byId("release-section").hidden = parts.fleet.role !== "host" || !release;
  const lines = release?.version == null ? [release?.reason ?? "No release is published."] : [
    `Version ${release.version} is ${release.stage}${release.reason ? `: ${release.reason}` : ""}; ${size(release.bytes)}, about ${time(release.eta_s)} of sending left.`,
    ...Object.entries(release.boards).map(([name, b]) => `${name}: ${b.state}, ${percent(b.held, 0)} here${b.away ? ", away" : ""}${b.reason ? `: ${b.reason}` : ""}`)];
  byId("release").replaceChildren(...lines.map((line) => make("p", {}, line)));
}

// Actions

/** A button for an action; without the token it says why it cannot be used. */
function button(text, run) {
  const doIt = async () => {
    try {
      toast((await run()) ?? `${text}: done`);
    } catch (error) {
      toast(error.message);
    }
  };
  return make("button", { disabled: !mayAct(), title: mayAct() ? null : NO_TOKEN, onclick: doIt }, text);
}

const set = (name, more) => async () => { await act({ boards: name, ...more }); };

function makeActs() {
  byId("all-acts").append(
    button("Pause all", set("all", { set: { pause: 1 } })),
    button("Start all", set("all", { set: { pause: null } })));
}

function open(name) {
  if (!boards.has(name)) return;
  chosen = name;
  say(byId("detail-title"), name);
  byId("detail-body").replaceChildren(make("div", { class: "chart", id: "detail-chart" }), make("dl", { id: "detail-facts" }));
  byId("detail-acts").dataset.state = "";
  if (!byId("detail").open) byId("detail").showModal();
  showDetails();
  showDetailCurve(places());
}

/** What is known of the board whose details are open, and what can be done. */
function showDetails() {
  const name = chosen, board = boards.get(name);
  const { report, state: [, word] } = board, known = values(name, 1);
  const facts = [
    ["State", word], ["Accuracy", known.length ? `${percent(known[0].value)} in round ${known[0].round.version}, ${percent(known.at(-1).value)} now` : "not reported"],
    ["Weight", `${percent(board.weight, 0)}${board.reason ? `: ${board.reason}` : ""}${board.since ? `, since global update ${board.since}` : ""}`],
    ["Agreement", board.agreement == null ? "–" : `${number(board.agreement, 2)} with the others' updates`],
    ["Samples", String(board.samples)], ["Rounds", `${board.rounds_counted} counted, ${board.rounds_missed} missed`],
    ["Bytes", `${size(board.bytes_up)} up, ${size(board.bytes_down)} down, ${board.refused} frames refused`],
    ["Heard", board.heard_at == null ? "not yet" : `${time(ago(board.heard_at))} ago`],
    ["Its report", board.reported_at == null ? "none yet" : `${time(ago(board.reported_at))} old`],
    ...Object.entries(report).map(([key, value]) => [key.replaceAll("_", " "), typeof value === "number" ? number(value, 4) : value]),
  ];
  const muted = board.reason.includes("muted");
  byId("detail-facts").replaceChildren(...facts.flatMap(([key, value]) => [make("dt", {}, key), make("dd", {}, value)]));
  const acts = JSON.stringify([name, board.revoked, board.paused, muted]);
  if (byId("detail-acts").dataset.state === acts) return; // a button that is being pressed stays
  byId("detail-acts").dataset.state = acts;
  keepFocus(byId("detail-acts"), () => byId("detail-acts").replaceChildren(...(board.revoked ? [] : [
    board.paused ? button("Start it", set(name, { set: { pause: null } })) : button("Pause it", set(name, { set: { pause: 1 } })),
    button(muted ? "Count it again" : "Mute it", set(name, { mute: !muted })),
  ])));
}

function showDetailCurve(place) {
  const room = byId("detail-chart");
  if (room) curve(room, 1, chosen, place);
}

// News

function take(message) {
  if (message.anew) {
    boards.clear(); rounds.clear();
    delete parts.trouble;
  }
  const changed = { boards: new Set(), rounds: false };
  for (const [name, part] of Object.entries(message.parts)) {
    if (name.startsWith(BOARD)) {
      boards.set(part.name, part);
      changed.boards.add(part.name);
    } else if (name.startsWith(ROUND)) {
      rounds.set(part.version, part);
      changed.rounds = true;
    } else parts[name] = part;
  }
  for (const version of [...rounds.keys()].sort((a, b) => a - b).slice(0, -200)) rounds.delete(version);
  if (changed.rounds || message.anew) learn();
  showConnection(parts.trouble ? "bad" : "good", parts.trouble || "live");
  if (!parts.fleet.role) return; // the process has only started
  const isHost = parts.fleet.role === "host";
  byId("fleet").hidden = byId("map-section").hidden = byId("one-label").hidden = !isHost;
  for (const [name, { row }] of rows) if (!boards.has(name)) { row.remove(); rows.delete(name); }
  for (const name of changed.boards) showBoard(boards.get(name));
  for (const name of changed.rounds ? boards.keys() : changed.boards) stale.add(name);
  showCurvesOfRows();
  showFleet();
  if (message.parts.alarms || message.anew) showAlarms();
  showTiles();
  if (isHost && changed.boards.size) {
    listOne();
    arrange();
    const known = [...boards.values()].map((board) => ({ board, state: board.state }));
    const shown = JSON.stringify(known.map(({ board, state }) => [board.name, state[0], board.members]));
    if (shown !== drawn) setTimeout(() => drawMap(byId("map"), known, parts.fleet, open), 60); // after the table
    drawn = shown;
  }
  if (changed.rounds || message.anew) {
    if (!waiting) { waiting = true; setTimeout(() => { waiting = false; showCurves(); }, 30); }
    showRounds();
  }
  if (changed.boards.has(chosen) && byId("detail").open) showDetails();
  if (parts.fleet.role === "node") labelling(byId("labelling"), byId("label-room"), parts.fleet);
}

function listOne() {
  const select = byId("one");
  if (select.options.length === boards.size + 1) return;
  const kept = select.value;
  select.replaceChildren(make("option", { value: "" }, "the fleet"),
    ...[...boards.keys()].sort().map((name) => make("option", { value: name }, name)));
  select.value = boards.has(kept) ? kept : "";
}

makeHeads();
makeActs();
byId("find").addEventListener("input", arrange);
byId("over").addEventListener("change", showCurves);
byId("one").addEventListener("change", showCurves);
addEventListener("resize", () => requestAnimationFrame(showCurves));
setInterval(() => { for (const board of boards.values()) showHeard(board); if (parts.fleet.role) showFleet(); }, 5000);
function showConnection(state, text) {
  if (parts.fleet.phase === "finished" && text.endsWith("trying again")) [state, text] = ["", "ended; this is its last state"];
  byId("connection").className = state;
  say(byId("connection"), text);
}

follow(take, showConnection);
