// Shows attention weights: the user chooses a token, and the tokens that it attends to are shaded by weight.
//
// The element #data holds the maps that page.py writes: one for each kind of attention, by tokens and by words.
// Q queries, the tokens that attend; K keys, the tokens that are attended to.
"use strict";

const MEAN = "mean"; // instead of a head: the mean of all heads
const STEPS = 65535; // the integer that stores a weight of 1
const LISTED = 8; // maximum number of links in the table
const SMALLEST_LISTED = 0.0005; // weight; smaller weights would show as 0.0 %
const CURVES = 12; // maximum number of curves
const SMALLEST_CURVE = 0.04; // weight
const THUMBNAIL = 56; // pixels, of the longer side
const FRAME_TIME = 10; // milliseconds of drawing before the page may react again

const NAMES = { encoder: "Encoder", decoder: "Decoder", cross: "Cross" };
const KINDS = JSON.parse(document.getElementById("data").textContent).maps;
const element = (id) => document.getElementById(id);

// The user's choices. A token is {side: "queries" or "keys", index}; a token under the mouse takes precedence.
const chosen = { kind: 0, words: false, layer: 0, head: MEAN, token: { side: "queries", index: 0 } };
let hovered = null;
let map = null; // the chosen kind by tokens or words: {queries, keys, shape, values}
let matrix = null; // Float32Array [Q × K], of the chosen layer and head

// Weights

async function unpack(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint16Array(await new Response(stream).arrayBuffer());
}

function weightsOf(layer, head) {
  const [, heads, rows, columns] = map.shape;
  const size = rows * columns;
  const sum = new Float32Array(size);
  const summed = head === MEAN ? [...Array(heads).keys()] : [head];
  for (const each of summed) {
    const start = (layer * heads + each) * size;
    for (let i = 0; i < size; i++) sum[i] += map.values[start + i];
  }
  return sum.map((value) => value / (STEPS * summed.length));
}

// Returns the links of a token to tokens of the other side, strongest first: [{index, weight}].
function linksOf({ side, index }) {
  const columns = map.keys.length;
  const others = side === "queries" ? map.keys : map.queries;
  const links = others.map((_, other) => ({
    index: other,
    weight: side === "queries" ? matrix[index * columns + other] : matrix[other * columns + index],
  }));
  return links.sort((a, b) => b.weight - a.weight);
}

// Controls

function option(value, text) {
  return new Option(text, value);
}

function makeKinds() {
  element("kinds").hidden = KINDS.length < 2;
  KINDS.forEach(({ kind }, number) => {
    const input = Object.assign(document.createElement("input"), { type: "radio", name: "kind", value: number });
    input.checked = number === chosen.kind;
    const label = document.createElement("label");
    label.append(input, NAMES[kind]);
    element("kinds").querySelector(".segments").append(label);
  });
}

function makeSelects() {
  const [layers, heads] = map.shape;
  const numbers = (count) => [...Array(count).keys()];
  element("layer").replaceChildren(...numbers(layers).map((layer) => option(layer, layer)));
  element("head").replaceChildren(option(MEAN, "Mean of all"), ...numbers(heads).map((head) => option(head, head)));
}

function listen() {
  element("kinds").addEventListener("change", (event) => showMap({ kind: Number(event.target.value) }));
  element("words").addEventListener("change", (event) => showMap({ words: event.target.checked }));
  element("layer").addEventListener("change", (event) => showHead({ layer: Number(event.target.value) }));
  element("head").addEventListener("change", (event) => showHead({ head: numberOf(event.target.value) }));
  ["queries", "keys"].forEach(listenToTokens);
  listenToHeads();
  document.querySelectorAll(".tokens").forEach((list) => list.addEventListener("scroll", drawCurves));
  addEventListener("resize", drawCurves);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawHeads);
}

function numberOf(head) {
  return head === MEAN ? MEAN : Number(head);
}

// Tokens

function listenToTokens(side) {
  const list = element(side);
  const tokenAt = (event) => event.target.closest("li");
  const hover = (index) => {
    hovered = index === null ? null : { side, index };
    showToken();
  };
  list.addEventListener("pointerover", (event) => {
    if (event.pointerType === "mouse") hover(tokenAt(event) ? tokenAt(event).value : null);
  });
  list.addEventListener("pointerleave", () => hover(null));
  list.addEventListener("click", (event) => tokenAt(event)?.focus()); // Safari does not focus tapped elements
  list.addEventListener("focusin", (event) => {
    hovered = null;
    chosen.token = { side, index: tokenAt(event).value };
    showToken();
  });
  list.addEventListener("keydown", (event) => moveInTokens(list, event));
}

// In right-to-left text, the left arrow moves forward.
function moveInTokens(list, event) {
  const tokens = [...list.children];
  const at = tokens.indexOf(document.activeElement);
  const onward = list.dir === "rtl" ? "ArrowLeft" : "ArrowRight";
  const target = {
    [onward]: () => tokens[at + 1],
    [onward === "ArrowLeft" ? "ArrowRight" : "ArrowLeft"]: () => tokens[at - 1],
    ArrowDown: () => inNextLine(tokens.slice(at + 1), tokens[at]),
    ArrowUp: () => inNextLine(tokens.slice(0, at).reverse(), tokens[at]),
    Home: () => tokens[0],
    End: () => tokens.at(-1),
  }[event.key];
  if (!target) return;
  event.preventDefault();
  target()?.focus();
}

// Returns the nearest token of the first line in `tokens` other than the line of `from`.
function inNextLine(tokens, from) {
  const line = tokens.find((token) => token.offsetTop !== from.offsetTop)?.offsetTop;
  const distance = (token) => Math.abs(token.offsetLeft + token.offsetWidth / 2 - from.offsetLeft - from.offsetWidth / 2);
  return tokens.filter((token) => token.offsetTop === line).sort((a, b) => distance(a) - distance(b))[0];
}

function makeTokens(side) {
  const list = element(side);
  list.dir = isRightToLeft(map[side]) ? "rtl" : "ltr";
  list.replaceChildren(...map[side].map((text, index) => {
    const token = document.createElement("li");
    token.role = "option";
    token.value = index;
    token.textContent = visible(text);
    return token;
  }));
}

function visible(text) {
  return text.trim() || "␣";
}

// Special tokens have no direction: <s>, [CLS], and the languages of multilingual models: ar_AR, arb_Arab, __ar__.
const SPECIAL = /^(<.+>|\[.+\]|__.+__|[a-z]{2,3}_[A-Z][A-Za-z]+)$/;
const RIGHT_TO_LEFT = /[\p{Script=Arabic}\p{Script=Hebrew}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u;

function isRightToLeft(texts) {
  const letters = texts.filter((text) => !SPECIAL.test(text)).join(" ").match(/\p{L}/gu) ?? [];
  return letters.filter((letter) => RIGHT_TO_LEFT.test(letter)).length > letters.length / 2;
}

function makeTitles() {
  const { kind } = KINDS[chosen.kind];
  const hasTwoTexts = KINDS.some((each) => each.kind === "cross");
  const text = !hasTwoTexts ? "text" : kind === "encoder" ? "source" : "target";
  element("queries-title").textContent = `From the ${text}`;
  element("keys-title").textContent = `to the ${kind === "cross" ? "source" : text}`;
}

// Showing a map, then one of its heads, then a token in that head

async function showMap(change) {
  Object.assign(chosen, change);
  const kind = KINDS[chosen.kind];
  element("words-label").hidden = !kind.words;
  const packed = (chosen.words && kind.words) || kind.tokens;
  packed.values ??= unpack(packed.weights);
  const values = await packed.values;
  if (packed !== ((chosen.words && KINDS[chosen.kind].words) || KINDS[chosen.kind].tokens)) return; // another is chosen
  map = { ...packed, values };
  const [layers, heads] = map.shape;
  chosen.layer = Math.min(chosen.layer, layers - 1);
  if (chosen.head >= heads) chosen.head = MEAN;
  chosen.token = { side: "queries", index: Math.floor(map.queries.length / 2) }; // the first is often special
  hovered = null;
  makeTitles();
  makeSelects();
  ["queries", "keys"].forEach(makeTokens);
  makeHeads();
  showHead({});
  reveal(element("queries").children[chosen.token.index]);
}

function showHead(change) {
  Object.assign(chosen, change);
  matrix = weightsOf(chosen.layer, chosen.head);
  element("layer").value = chosen.layer;
  element("head").value = chosen.head;
  markHead();
  showToken();
}

function showToken() {
  const token = hovered ?? chosen.token;
  const links = linksOf(token);
  shade(token, links);
  drawCurves();
  element("sentence").replaceChildren(...sentence(token, links));
  listLinks(token, links);
}

function shade(token, links) {
  for (const side of ["queries", "keys"]) {
    for (const each of element(side).children) {
      const isShown = side === token.side && each.value === token.index;
      const isChosen = side === chosen.token.side && each.value === chosen.token.index;
      each.classList.toggle("shown", isShown);
      each.ariaSelected = isChosen;
      // The Tab key moves to the chosen token of this text, or else to its first token.
      each.tabIndex = isChosen || (side !== chosen.token.side && each.value === 0) ? 0 : -1;
      if (side === token.side) each.style.removeProperty("--weight");
    }
  }
  const others = element(token.side === "queries" ? "keys" : "queries").children;
  for (const { index, weight } of links) others[index].style.setProperty("--weight", `${100 * Math.sqrt(weight)}%`);
  reveal(others[links[0].index]);
}

// Scrolls the list of a long text, but never the page.
function reveal(token) {
  const list = token.parentElement;
  const isInSight =
    token.offsetTop >= list.scrollTop
    && token.offsetTop + token.offsetHeight <= list.scrollTop + list.clientHeight;
  if (!isInSight) list.scrollTop = token.offsetTop - list.clientHeight / 2;
}

// Text about the shown token

function percent(weight) {
  return `${(100 * weight).toFixed(1)}\u00a0%`; // no line break
}

function quoted(side, index) {
  const text = document.createElement("bdi");
  text.textContent = visible(map[side][index]);
  return ["“", text, "”"];
}

function sentence({ side, index }, links) {
  const other = side === "queries" ? "keys" : "queries";
  const shown = links.slice(0, 3).filter(({ weight }, rank) => rank === 0 || weight >= 0.01);
  const parts = shown.flatMap((link, rank) => [
    rank === 0 ? "" : rank === shown.length - 1 ? " and " : ", ",
    ...quoted(other, link.index),
    ` (${percent(link.weight)})`,
  ]);
  return [...quoted(side, index), side === "queries" ? " attends most to " : " is attended to most by ", ...parts, "."];
}

function row(cells, name) {
  const line = document.createElement("tr");
  line.className = name;
  for (const content of cells) {
    const cell = document.createElement("td");
    cell.append(content);
    line.append(cell);
  }
  return line;
}

function listLinks({ side }, links) {
  const texts = map[side === "queries" ? "keys" : "queries"];
  const listed = links.slice(0, LISTED).filter(({ weight }, rank) => rank === 0 || weight >= SMALLEST_LISTED);
  const rows = listed.map(({ index, weight }) => {
    const token = document.createElement("bdi");
    token.textContent = visible(texts[index]);
    const line = row([token, index + 1, percent(weight)], "");
    line.style.setProperty("--weight", `${100 * weight}%`);
    return line;
  });
  const rest = links.slice(listed.length);
  if (rest.length && side === "queries") {
    const weight = rest.reduce((sum, link) => sum + link.weight, 0);
    rows.push(row([`${rest.length} other tokens`, "", percent(weight)], "rest"));
  }
  element("links").replaceChildren(...rows);
}

// Curves from the attending token to the attended tokens

function drawCurves() {
  if (!map) return;
  const svg = document.querySelector(".curves");
  const origin = svg.getBoundingClientRect();
  const token = hovered ?? chosen.token;
  const curves = linksOf(token).slice(0, CURVES).filter(({ weight }) => weight >= SMALLEST_CURVE);
  svg.replaceChildren(...curves.map(({ index, weight }) => {
    const [query, key] = token.side === "queries" ? [token.index, index] : [index, token.index];
    return curve(anchor("queries", query, "bottom", origin), anchor("keys", key, "top", origin), weight);
  }));
}

// Returns the middle of a token's edge, clamped to the visible part of its list.
function anchor(side, index, edge, origin) {
  const box = element(side).children[index].getBoundingClientRect();
  const frame = element(side).getBoundingClientRect();
  const y = Math.min(Math.max(box[edge], frame.top), frame.bottom);
  return [(box.left + box.right) / 2 - origin.left, y - origin.top];
}

function curve([x1, y1], [x2, y2], weight) {
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const middle = (y1 + y2) / 2;
  path.setAttribute("d", `M${x1},${y1} C${x1},${middle} ${x2},${middle} ${x2},${y2}`);
  path.setAttribute("stroke-width", 1 + 5 * weight);
  path.setAttribute("stroke-opacity", 0.25 + 0.75 * weight);
  return path;
}

// Pictures of all heads

function listenToHeads() {
  const grid = element("heads");
  grid.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) showHead({ layer: Number(button.dataset.layer), head: numberOf(button.dataset.head) });
  });
  grid.addEventListener("keydown", (event) => {
    const [, heads] = map.shape;
    const buttons = [...grid.querySelectorAll("button")];
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: heads + 1, ArrowUp: -heads - 1 }[event.key];
    const target = step && buttons[buttons.indexOf(document.activeElement) + step];
    if (!step) return;
    event.preventDefault();
    target?.focus();
    target?.click();
  });
}

function makeHeads() {
  const [layers, heads, rows, columns] = map.shape;
  const grid = element("heads");
  const labels = [MEAN, ...Array(heads).keys()];
  grid.style.setProperty("--columns", heads + 1);
  grid.style.setProperty("--ratio", Math.min(Math.max(columns / rows, 0.5), 2));
  grid.replaceChildren(label(""), ...labels.map((head) => label(head)));
  for (let layer = 0; layer < layers; layer++) {
    grid.append(label(layer, "layer"), ...labels.map((head) => headButton(layer, head)));
  }
  drawHeads();
}

function label(text, name = "") {
  const span = Object.assign(document.createElement("span"), { textContent: text, className: name });
  span.ariaHidden = "true"; // the buttons have labels
  return span;
}

function headButton(layer, head) {
  const button = Object.assign(document.createElement("button"), { type: "button", role: "radio" });
  button.ariaLabel = `Layer ${layer}, ${head === MEAN ? "mean of all heads" : `head ${head}`}`;
  Object.assign(button.dataset, { layer, head });
  button.append(document.createElement("canvas"));
  return button;
}

function markHead() {
  for (const button of element("heads").querySelectorAll("button")) {
    const isChosen = Number(button.dataset.layer) === chosen.layer && numberOf(button.dataset.head) === chosen.head;
    button.ariaChecked = isChosen;
    button.tabIndex = isChosen ? 0 : -1;
  }
}

// Draws for some milliseconds, lets the page react, and continues; a later call stops an earlier one.
let drawing = 0;
function drawHeads() {
  const number = ++drawing;
  const buttons = [...element("heads").querySelectorAll("button")];
  const color = heatColor();
  const drawSome = () => {
    const start = performance.now();
    while (number === drawing && buttons.length && performance.now() - start < FRAME_TIME) drawHead(buttons.shift(), color);
    if (number === drawing && buttons.length) requestAnimationFrame(drawSome);
  };
  drawSome();
}

function heatColor() {
  const hex = getComputedStyle(document.documentElement).getPropertyValue("--heat").trim();
  return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function drawHead(button, color) {
  const [, , rows, columns] = map.shape;
  const weights = weightsOf(Number(button.dataset.layer), numberOf(button.dataset.head));
  const canvas = button.firstChild;
  canvas.width = Math.min(columns, THUMBNAIL);
  canvas.height = Math.min(rows, THUMBNAIL);
  const strongest = largestInCells(weights, rows, columns, canvas.height, canvas.width);
  const image = new ImageData(canvas.width, canvas.height);
  strongest.forEach((weight, i) => image.data.set([...color, 255 * Math.sqrt(weight)], 4 * i));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// Returns the largest weight in each of [height × width] cells of a matrix, so that thin lines stay visible.
function largestInCells(weights, rows, columns, height, width) {
  const cells = new Float32Array(height * width);
  for (let row = 0; row < rows; row++) {
    const line = Math.floor((row * height) / rows) * width;
    for (let column = 0; column < columns; column++) {
      const cell = line + Math.floor((column * width) / columns);
      cells[cell] = Math.max(cells[cell], weights[row * columns + column]);
    }
  }
  return cells;
}

// At the start: cross-attention if there is any, in the last layer.

chosen.kind = Math.max(0, KINDS.findIndex(({ kind }) => kind === "cross"));
chosen.layer = Infinity;
makeKinds();
listen();
showMap({});
