// Labelling on a board's own page: one key for each label, undo, many at once, and what it changed.

import { byId, make, percent, say, toast } from "./dom.js";
import { act, mayAct } from "./feed.js";

const LIMIT = 40, KEYS = "0123456789qwertyioadfghjkzxcvbnm"; // u, s, p and l have a meaning
let room = null, about = null; // the last answer about the queue
let queue = [], given = []; // rows that wait; what was given, newest last
let mode = "queue", begun = null, asking = false;
let recorder = null; // what the board's microphone says of recordings
const RECORDINGS = 10;

const ask = (what, more = {}) => act({ data: what, ...more }).then((answer) => answer.data ?? answer);

/** Show the section once; later calls keep its figures new. */
export function labelling(section, place, fleet) {
  if (fleet.source == null) return;
  section.hidden = false;
  recorder = fleet.source.live?.recording;
  say(byId("words"), fleet.words ?? "");
  byId("recorder").hidden = recorder == null || !mayAct();
  if (recorder) showRecorder();
  if (room) return;
  room = place;
  if (!mayAct()) {
    room.append(make("p", {}, "Samples are shown with the token only: open the address that `ternmesh page` prints."));
    return;
  }
  addEventListener("keydown", onKey);
  load("queue");
}

function showRecorder() {
  const { label, left, said, level } = recorder, known = about?.labels ?? [];
  byId("level").value = level;
  say(byId("recorded"), !label ? `Say the word ${RECORDINGS} times, with silence between.`
    : left ? `${label}: ${left} to go. ${said}` : said || `${label}: done.`);
  byId("record-stop").hidden = !left;
  byId("record-stop").onclick = () => ask("record", { label, count: 0 });
  const choices = byId("record-labels");
  if (choices.childElementCount !== known.length) choices.replaceChildren(...known.map((name) =>
    make("button", { onclick: () => ask("record", { label: name, count: RECORDINGS }).catch((error) => toast(error.message)) }, name)));
}

async function load(which) {
  mode = which;
  try {
    about = await ask(which, { limit: LIMIT });
    begun ??= about.score;
    queue = about.rows;
    if (recorder) showRecorder();
    render();
  } catch (error) {
    room.replaceChildren(make("p", {}, error.message), make("button", { onclick: () => load(which) }, "Try again"));
  }
}

function render() {
  const { labels, waiting, labelled, score, held_out: heldOut } = about;
  const first = mode === "queue" ? queue[0] : null;
  const parts = [
    make("p", { id: "label-figures" }, `${waiting} wait, ${labelled} labelled. ` +
      (score == null ? "No score yet." : `Score ${percent(score)}${heldOut ? ` on ${heldOut} held-out samples` : ""}` +
        (begun != null && begun !== score ? `, ${percent(begun)} when you began.` : "."))),
    make("p", { class: "tools acts" },
      tab("queue", "Waiting, least certain first"), tab("labelled", "Labelled"),
      make("button", { onclick: worst }, "Which samples hurt?"),
      make("button", { onclick: undo, disabled: !given.length }, make("kbd", {}, "u"), "Undo")),
  ];
  if (first) parts.push(make("div", { class: "sample" }, picture(first), make("div", {},
    make("p", {}, make("b", {}, first.key)),
    ...first.guesses.map(([name, share]) => make("div", { class: "guess" }, make("span", {}, name),
      make("meter", { min: 0, max: 1, value: share, "aria-label": `${name}: ${percent(share, 0)}` }), percent(share, 0))),
    labelButtons(labels, () => [first.key]),
    make("p", { class: "acts" },
      isSound(first) ? make("button", { onclick: () => play(first) }, make("kbd", {}, "p"), isWave(first) ? "Play" : "Play (sound made from its features)") : null,
      make("button", { onclick: skip }, make("kbd", {}, "s"), "Later")))));
  const others = mode === "queue" ? queue.slice(1) : queue;
  if (others.length) parts.push(
    make("p", { class: "tools" }, make("label", { class: "tools" }, make("input", { type: "checkbox", onchange: (event) => {
      for (const box of room.querySelectorAll(".thumb input")) box.checked = event.target.checked;
    } }), " all of these"), "Label what is chosen:"),
    labelButtons(labels, picked),
    make("div", { class: "thumbs" }, ...others.map(thumb)));
  else if (!first) parts.push(make("p", {}, mode === "queue" ? "No sample waits for a label." : "No sample has a label yet."));
  room.replaceChildren(...parts);
}

const tab = (which, text) => make("button", { "aria-pressed": String(mode === which), onclick: () => load(which) }, text);
const picked = () => [...room.querySelectorAll(".thumb input:checked")].map((box) => box.value);

/** A key for each label: its first character where these are unique, else its own or the next free one. */
function keysOf(labels) {
  const own = labels.map((name) => String(name).toLowerCase()), fits = (key) => key && KEYS.includes(key);
  if (own.every((name) => fits(name[0])) && new Set(own.map((name) => name[0])).size === own.length) return own.map((name) => name[0]);
  const free = [...KEYS].filter((key) => !own.includes(key));
  return own.map((name) => (name.length === 1 && fits(name) ? name : free.shift()));
}

function labelButtons(labels, keys) {
  const letters = keysOf(labels);
  return make("div", { class: "labels" }, ...labels.map((name, i) =>
    make("button", { "data-label": name, onclick: () => give(keys(), name) }, letters[i] && make("kbd", {}, letters[i]), name)));
}

function thumb(row) {
  const more = row.label != null ? ` ${row.label}` : row.guesses[0] ? ` ${row.guesses[0][0]}?` : "";
  const loss = row.loss == null ? null : make("small", {}, `loss ${row.loss.toFixed(2)}`);
  return make("div", { class: "thumb" }, picture(row),
    make("label", {}, make("input", { type: "checkbox", value: row.key, "aria-label": `${row.key}${more}` }), make("span", {}, make("b", {}, more))), loss,
    isSound(row) ? make("button", { onclick: () => play(row), "aria-label": `Play ${row.key}` }, "▶") : null);
}

async function give(keys, label) {
  if (!keys.length) return toast("Choose samples first.");
  if (asking) return;
  asking = true;
  try {
    const answer = await ask("label", { keys, label });
    given.push({ keys, before: answer.before ?? {} });
    toast(`${keys.length === 1 ? keys[0] : `${keys.length} samples`}: ${label}`);
    about.waiting -= mode === "queue" ? keys.length : 0;
    about.labelled += mode === "queue" ? keys.length : 0;
    if (mode === "queue") queue = queue.filter((row) => !keys.includes(row.key));
    else for (const row of queue) if (keys.includes(row.key)) row.label = label;
    if (mode === "queue" && queue.length < LIMIT / 4) await load("queue");
    else render();
  } catch (error) {
    toast(error.message);
  } finally {
    asking = false;
  }
}

async function undo() {
  const step = given.pop();
  if (!step || asking) return;
  const fresh = step.keys.filter((key) => step.before[key] == null);
  try {
    if (fresh.length) await ask("unlabel", { keys: fresh });
    for (const key of step.keys) if (step.before[key] != null) await ask("label", { keys: [key], label: step.before[key] });
    toast("undone");
  } catch (error) {
    toast(error.message);
  }
  await load(mode);
  queue.sort((a, b) => step.keys.includes(b.key) - step.keys.includes(a.key)); // where they were
  render();
}

function skip() {
  queue.push(queue.shift());
  render();
}

/** The labelled samples that the model learns worst from: wrong labels stand among them. */
async function worst() {
  try {
    const { rows, samples, of } = await ask("worst");
    const shown = rows.slice(0, LIMIT);
    const found = await ask("labelled", { keys: shown.map((row) => row.key) });
    const pictures = new Map(found.rows.map((row) => [row.key, row]));
    mode = "worst";
    about = found;
    queue = shown.filter((row) => pictures.has(row.key)).map((row) => ({ ...pictures.get(row.key), ...row }));
    render();
    toast(`${samples} of ${of} labelled samples were looked at; the first are likeliest to have a wrong label`);
  } catch (error) {
    toast(error.message);
  }
}

function onKey(event) {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName) || !about || byId("detail").open) return;
  const first = mode === "queue" ? queue[0] : null, place = about.labels ? keysOf(about.labels).indexOf(event.key.toLowerCase()) : -1;
  if (event.key === "u") undo();
  else if (first && event.key === "s") skip();
  else if (first && event.key === "p" && isSound(first)) play(first);
  else if (first && place >= 0 && place < about.labels.length) give([first.key], about.labels[place]);
}

// Pictures and sounds

const bytes = (row) => Uint8Array.from(atob(row.image), (character) => character.charCodeAt(0));
/** Height and width: a spectrogram comes as time by bands, and is shown with time to the right. */
const isFeatures = (row) => row.shape.length === 2 && row.shape[0] !== row.shape[1];
const isWave = (row) => about.clip_s > 0 && row.shape.length === 1;
const isSound = (row) => isFeatures(row) || isWave(row);

function picture(row) {
  const data = bytes(row), [first, second = 1] = row.shape.length > 1 ? row.shape : [1, row.shape[0]];
  if (isWave(row)) return wave(row, data);
  const turned = isFeatures(row), width = turned ? first : second, height = turned ? second : first;
  const canvas = make("canvas", { width, height, role: "img", "aria-label": `${turned ? "spectrogram" : "picture"} of ${row.key}` });
  const image = canvas.getContext("2d").createImageData(width, height);
  for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) {
    const value = data[turned ? x * second + (height - 1 - y) : y * second + x] ?? 0, at = 4 * (y * width + x);
    image.data.set(turned ? [value, 255 * (value / 255) ** 2.2, 90 + 0.3 * value, 255] : [value, value, value, 255], at);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  return canvas;
}

/** Sound as it was recorded: how loud it is over time. */
function wave(row, data) {
  const canvas = make("canvas", { width: 200, height: 50, role: "img", "aria-label": `sound of ${row.key}` });
  const context = canvas.getContext("2d"), part = Math.ceil(data.length / 200);
  context.fillStyle = "#7aa2f7";
  for (let x = 0; x < 200; x += 1) {
    const levels = data.slice(x * part, (x + 1) * part), low = Math.min(...levels), high = Math.max(...levels);
    if (levels.length) context.fillRect(x, 50 - high * 50 / 255, 1, Math.max(1, (high - low) * 50 / 255));
  }
  return canvas;
}

function playWave(row) {
  const data = bytes(row), context = new AudioContext(), middle = data.reduce((sum, value) => sum + value, 0) / data.length;
  const sound = context.createBuffer(1, data.length, data.length / about.clip_s);
  sound.getChannelData(0).set(Float32Array.from(data, (value) => (value - middle) / 128));
  start(context, sound);
}

function start(context, sound) {
  const source = context.createBufferSource();
  source.buffer = sound;
  source.connect(context.destination);
  source.onended = () => context.close();
  source.start();
}

/** Make a sound back from a log-mel spectrogram: a tone for each band, as loud as the band. */
function play(row) {
  if (isWave(row)) return playWave(row);
  const data = bytes(row), [frames, bands] = row.shape, context = new AudioContext();
  const rate = context.sampleRate, hop = 0.02, length = Math.ceil(frames * hop * rate);
  const sound = context.createBuffer(1, length, rate), samples = sound.getChannelData(0);
  const mel = (hertz) => 2595 * Math.log10(1 + hertz / 700), low = mel(80), high = mel(3900);
  for (let band = 0; band < bands; band += 1) {
    const hertz = 700 * (10 ** ((low + ((band + 0.5) / bands) * (high - low)) / 2595) - 1);
    const turn = (2 * Math.PI * hertz) / rate, phase = 2.4 * band * band;
    for (let i = 0; i < length; i += 1) {
      const at = i / (hop * rate), frame = Math.min(frames - 1, Math.floor(at)), rest = at - frame;
      const here = data[frame * bands + band], next = data[Math.min(frames - 1, frame + 1) * bands + band];
      const loud = (here + (next - here) * rest) / 255;
      samples[i] += (0.25 / Math.sqrt(bands)) * loud ** 3 * Math.sin(turn * i + phase);
    }
  }
  start(context, sound);
}
