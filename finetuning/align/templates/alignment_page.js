"use strict";
const { pairs, total, threshold, link_all: linksAll } = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const HINT =
  "Point at a word, tap it, or step through the words with the arrow keys to see its partners. Dotted words have none.";

/** An element with properties and children; text is set as text, so that words cannot be markup. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// Chinese and Japanese text is aligned by its characters, and read and searched without spaces
const UNSPACED = "[\\u2e80-\\u9fff\\uff00-\\uffef]";
const gaps = new RegExp(`(?<=${UNSPACED}) (?=${UNSPACED})`, "g");
const texts = pairs.map((pair) => [pair.source, pair.target].map((words) => words.join(" ").replace(gaps, "")));
const searchable = texts.map((both) => both.join("\n").normalize("NFKC").toLowerCase());
let listed = pairs.map((_, number) => number); // what the search has left
let current = null; // number of the shown pair, with its words, cells and paths:
let shown = null;
let least = threshold ?? 0; // probability of the links that are shown
let pinned = null; // [source word | null, target word | null]

/* ---- the list ---- */

const items = texts.map(([source, target], number) => {
  const button = make("button", { type: "button" }, make("b", { textContent: number + 1 }));
  for (const text of [source, target]) button.append(make("span", { dir: "auto", textContent: text || "–" }));
  button.addEventListener("click", () => {
    show(number);
    openBrowser(false);
  });
  const item = make("li", {}, button);
  $("items").append(item);
  return item;
});

function filter() {
  const wanted = $("query").value.normalize("NFKC").toLowerCase().trim();
  listed = [];
  searchable.forEach((text, number) => {
    items[number].hidden = !text.includes(wanted);
    if (!items[number].hidden) listed.push(number);
  });
  const all =
    total > pairs.length
      ? `first ${pairs.length.toLocaleString("en")} of ${total.toLocaleString("en")} pairs`
      : `${pairs.length.toLocaleString("en")} ${pairs.length === 1 ? "pair" : "pairs"}`;
  $("count").textContent = wanted
    ? `${listed.length.toLocaleString("en")} of the ${all}`
    : all[0].toUpperCase() + all.slice(1);
  if (listed.length && !listed.includes(current)) show(listed[0]);
  else updatePager();
}

function updatePager() {
  const place = listed.indexOf(current);
  $("where").textContent =
    `Pair ${current + 1}` +
    (listed.length < pairs.length
      ? place < 0
        ? " (not among the pairs found)"
        : ` (${place + 1} of ${listed.length} found)`
      : ` of ${pairs.length}`);
  $("previous").disabled = place < 1;
  $("next").disabled = place < 0 || place === listed.length - 1;
}

function step(by) {
  const place = listed.indexOf(current) + by;
  if (place >= 0 && place < listed.length) show(listed[place]);
}

function openBrowser(open) {
  $("browser").classList.toggle("open", open);
  $("open").setAttribute("aria-expanded", open);
  if (open) $("query").focus();
}

/* ---- a pair ---- */

function show(number) {
  if (current !== null) items[current].firstChild.removeAttribute("aria-current");
  current = number;
  pinned = null;
  items[number].firstChild.setAttribute("aria-current", "true");
  items[number].scrollIntoView({ block: "nearest" });
  history.replaceState(null, "", `#${number + 1}`);
  draw();
  highlight(null, null);
  updatePager();
}

/** The pair with the links that are probable enough, and the likeliest of each source word where all are linked. */
function draw() {
  const pair = pairs[current];
  const likeliest = new Map();
  for (const link of pair.links) if (!(likeliest.get(link[0])?.[2] >= link[2])) likeliest.set(link[0], link);
  const isAlways = (link) => linksAll && likeliest.get(link[0]) === link;
  const links = pair.links.filter((link) => link[2] >= least || isAlways(link));
  const partners = [pair.source.map(() => []), pair.target.map(() => [])];
  for (const [i, j, probability] of links) {
    partners[0][i].push([j, probability]);
    partners[1][j].push([i, probability]);
  }
  shown = { pair, links, isAlways, partners, words: [], cells: [], heads: [[], []], paths: [] };
  $("chosen").textContent = `${least.toFixed(2)}: ${links.length} ${links.length === 1 ? "link" : "links"}`;
  drawSentences();
  drawMatrix();
  layOut();
}

function drawSentences() {
  const { pair, partners } = shown;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  const sides = [pair.source, pair.target].map((words, side) => {
    const name = side ? "target" : "source";
    // the direction of the whole sentence, from its first letter: a number in an Arabic sentence keeps its place
    const row = make("div", { className: `side ${name}`, dir: "auto" });
    row.setAttribute("role", "group");
    row.setAttribute("aria-label", side ? "Target sentence" : "Source sentence");
    shown.words[side] = words.map((word, i) => {
      const button = make("button", { type: "button", className: "word", textContent: word, tabIndex: i ? -1 : 0 });
      button.classList.toggle("alone", !partners[side][i].length);
      Object.assign(button.dataset, { side, i });
      return button;
    });
    row.append(...(words.length ? shown.words[side] : [make("p", { className: "none", textContent: "no words" })]));
    return row;
  });
  $("drawing").replaceChildren(svg, ...sides);
  shown.svg = svg;
  shown.sides = sides;
}

function drawMatrix() {
  const { pair } = shown;
  const isEmpty = !pair.source.length || !pair.target.length;
  $("similarity").hidden = isEmpty;
  if (isEmpty) return;
  if (!pair.similarity) {
    $("scroll").replaceChildren();
    $("legend").replaceChildren(
      make("span", {
        textContent: `${pair.source.length} by ${pair.target.length} words are too many for a matrix: it is left out.`,
      }),
      ...windows(pair),
    );
    return;
  }
  let low = Infinity,
    high = -Infinity; // a loop: long rows are too many arguments for Math.min
  for (const value of pair.similarity.flat()) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  const rtl = getComputedStyle(shown.sides[1]).direction === "rtl";
  const head = make("tr", {}, make("th", { textContent: "" }));
  pair.target.forEach((word, j) => {
    const label = make("div", {
      dir: "auto",
      textContent: word,
      className: /[\u2e80-\u9fff\uac00-\ud7af\uff00-\uffef]/.test(word) ? "" : "turned",
    });
    const cell = make("th", { scope: "col", title: word }, label);
    Object.assign(cell.dataset, { side: 1, i: j });
    shown.heads[1].push(cell);
    head.append(cell);
  });
  const linked = new Set(shown.links.map(([i, j]) => `${i} ${j}`));
  const body = make("tbody");
  pair.source.forEach((word, i) => {
    const label = make("th", { scope: "row", title: word, dir: "auto", textContent: word });
    Object.assign(label.dataset, { side: 0, i });
    shown.heads[0].push(label);
    const cells = pair.similarity[i].map((value, j) => {
      const share = high > low ? (value - low) / (high - low) : 0.5;
      const cell = make("td", { textContent: (value / 100).toFixed(2) });
      cell.style.setProperty("--v", share.toFixed(3));
      if (linked.has(`${i} ${j}`)) {
        cell.classList.add("link");
        cell.setAttribute("aria-label", `${(value / 100).toFixed(2)}, linked`);
      }
      Object.assign(cell.dataset, { row: i, column: j });
      return cell;
    });
    shown.cells.push(cells);
    body.append(make("tr", {}, label, ...cells));
  });
  // columns run in the reading direction of the target sentence
  shown.table = make(
    "table",
    { dir: rtl ? "rtl" : "ltr" },
    make("caption", { hidden: true, textContent: "Rows: source words. Columns: target words." }),
    make("thead", {}, head),
    body,
  );
  $("scroll").replaceChildren(shown.table);
  $("legend").replaceChildren(
    make("span", {}, `cosine ${(low / 100).toFixed(2)}`, make("i", { className: "scale" }), (high / 100).toFixed(2)),
    make("span", {}, make("i", { className: "dot" }), "linked"),
    ...windows(pair),
  );
}

function windows(pair) {
  return pair.windows > 1 ? [make("span", { textContent: `read in ${pair.windows} windows` })] : [];
}

/** Sentences one above the other where both fit, else word under word; then cells that fit, then the links. */
function layOut() {
  const drawing = $("drawing");
  drawing.className = "drawing wide";
  $("pair").classList.remove("two-columns");
  const fits = shown.sides.every((side) => side.scrollWidth <= side.clientWidth + 1);
  drawing.classList.toggle("wide", fits);
  drawing.classList.toggle("tall", !fits);
  $("pair").classList.toggle("two-columns", !fits && !$("similarity").hidden);
  if (shown.table) {
    const columns = shown.pair.target.length;
    const room =
      $("scroll").clientWidth - 2 - shown.heads[0].reduce((widest, head) => Math.max(widest, head.offsetWidth), 0);
    const cell = Math.max(12, Math.min(40, Math.floor(room / columns) - 1));
    shown.table.style.setProperty("--cell", `${cell}px`);
    shown.table.classList.toggle("numbers", cell >= 32);
  }
  drawLinks(fits);
}

function drawLinks(isWide) {
  const box = $("drawing").getBoundingClientRect();
  const place = (side, i) => {
    const word = shown.words[side][i].getBoundingClientRect();
    return isWide
      ? [word.left + word.width / 2 - box.left, (side ? word.top - 3 : word.bottom + 3) - box.top]
      : [(side ? word.left - 3 : word.right + 3) - box.left, word.top + word.height / 2 - box.top];
  };
  const name = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  shown.svg.replaceChildren();
  shown.paths = shown.links.map((link, number) => {
    const [i, j, probability] = link;
    const [x, y] = place(0, i),
      [u, v] = place(1, j);
    const curve = isWide
      ? `M${x},${y} C${x},${(y + v) / 2} ${u},${(y + v) / 2} ${u},${v}`
      : `M${x},${y} C${(x + u) / 2},${y} ${(x + u) / 2},${v} ${u},${v}`;
    const gradient = name("linearGradient", {
      id: `g${number}`,
      gradientUnits: "userSpaceOnUse",
      x1: x,
      y1: y,
      x2: isWide ? x : u,
      y2: isWide ? v : y,
    });
    for (const [offset, side] of [
      [0, "source"],
      [1, "target"],
    ])
      gradient.append(name("stop", { offset, style: `stop-color: var(--${side})` }));
    const path = name("path", {
      d: curve,
      stroke: `url(#g${number})`,
      style: `opacity: ${strength(probability)}`,
    });
    if (threshold !== null && probability < threshold && !shown.isAlways(link)) path.setAttribute("stroke-dasharray", "3 4");
    shown.svg.append(gradient, path);
    return path;
  });
}

/** Opacity of a link: where numbers tell right links from wrong ones, the unsure ones are faint. */
function strength(probability) {
  return threshold === null ? 1 : (0.2 + 0.8 * probability ** 2).toFixed(2);
}

/* ---- what is pointed at ---- */

/** Marks source word i, target word j, or the cell of both; null for none. */
function highlight(i, j) {
  const { links, partners, words, heads, cells, paths } = shown;
  const chosen = [i, j],
    isCell = i !== null && j !== null,
    isBusy = i !== null || j !== null;
  $("drawing").classList.toggle("is-busy", isBusy);
  for (const side of [0, 1]) {
    const other = chosen[1 - side];
    const reached = new Set(isCell || other === null ? [] : partners[1 - side][other].map(([word]) => word));
    words[side].forEach((word, n) => {
      word.classList.toggle("on", n === chosen[side]);
      word.classList.toggle("partner", reached.has(n));
    });
    heads[side].forEach((head, n) => head.classList.toggle("on", n === chosen[side] || reached.has(n)));
  }
  paths.forEach((path, n) => {
    const [s, t] = links[n];
    path.classList.toggle("on", isCell ? s === i && t === j : s === i || t === j);
  });
  cells.forEach((row, s) =>
    row.forEach((cell, t) => {
      cell.classList.toggle("cross", isBusy && !isCell && (s === i || t === j));
      cell.classList.toggle(
        "spot",
        isCell ? s === i && t === j : isBusy && (s === i || t === j) && cell.classList.contains("link"),
      );
    }),
  );
  describe(i, j);
}

function describe(i, j) {
  const { pair, links, partners } = shown;
  const word = (side, n) => make("bdi", { textContent: (side ? pair.target : pair.source)[n] });
  const numbers = (s, t, probability) => {
    const known = [];
    if (pair.similarity) known.push(`cosine ${(pair.similarity[s][t] / 100).toFixed(2)}`);
    if (probability !== undefined) known.push(`${threshold === null ? "score" : "probability"} ${probability.toFixed(2)}`);
    return make("span", { textContent: ` (${known.join(", ")})` });
  };
  if (i === null && j === null) return $("note").replaceChildren(HINT);
  if (i !== null && j !== null) {
    const link = pair.links.find(([s, t]) => s === i && t === j);
    return $("note").replaceChildren(
      word(0, i),
      links.includes(link) ? " is linked with " : " is not linked with ",
      word(1, j),
      numbers(i, j, link?.[2]),
    );
  }
  const side = i === null ? 1 : 0,
    n = side ? j : i;
  const parts = partners[side][n].flatMap(([m, probability], place) => [
    place ? ", " : " is linked with ",
    word(1 - side, m),
    side ? numbers(m, n, probability) : numbers(n, m, probability),
  ]);
  $("note").replaceChildren(word(side, n), ...(parts.length ? parts : [" has no partner"]));
}

/** [i, j] of what an event happened to: a word, a head of the matrix or a cell; null elsewhere. */
function pointed(event) {
  const { side, i, row, column } = event.target.closest?.("[data-side], [data-row]")?.dataset ?? {};
  if (row !== undefined) return [Number(row), Number(column)];
  return side === undefined ? null : side === "0" ? [Number(i), null] : [null, Number(i)];
}

/** What is marked where nothing is pointed at; keys scroll the page under a mouse that rests. */
function resting() {
  const word = document.querySelector(".word:focus-visible");
  return (word ? pointed({ target: word }) : pinned) ?? [null, null];
}

$("pair").addEventListener(
  "pointerover",
  (event) => event.pointerType === "mouse" && highlight(...(pointed(event) ?? resting())),
);
$("pair").addEventListener("pointerleave", () => highlight(...resting()));
$("pair").addEventListener("click", (event) => {
  const place = pointed(event);
  pinned = place && String(place) !== String(pinned) ? place : null;
  highlight(...(pinned ?? [null, null]));
});
$("pair").addEventListener("focusin", (event) => {
  if (!event.target.matches(".word")) return;
  for (const word of shown.words[event.target.dataset.side]) word.tabIndex = word === event.target ? 0 : -1;
  if (event.target.matches(":focus-visible")) highlight(...pointed(event));
});
$("pair").addEventListener("focusout", () => highlight(...resting()));
$("pair").addEventListener("keydown", (event) => {
  const side = Number(event.target.dataset?.side);
  if (!event.target.matches(".word")) return;
  const words = shown.words[side],
    i = Number(event.target.dataset.i);
  const forward = getComputedStyle(shown.sides[side]).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
  const isTall = $("drawing").classList.contains("tall");
  let to;
  if (isTall ? event.key === "ArrowDown" : event.key === forward) to = words[i + 1];
  else if (isTall ? event.key === "ArrowUp" : /^Arrow(Left|Right)$/.test(event.key)) to = words[i - 1];
  else if (/^Arrow/.test(event.key)) to = shown.words[1 - side][shown.partners[side][i][0]?.[0] ?? 0];
  else if (event.key === "Home") to = words[0];
  else if (event.key === "End") to = words.at(-1);
  else return;
  event.preventDefault();
  to?.focus();
});

$("least").addEventListener("input", () => {
  least = Number($("least").value);
  draw();
  highlight(...(pinned ?? [null, null]));
});
$("query").addEventListener("input", filter);
$("previous").addEventListener("click", () => step(-1));
$("next").addEventListener("click", () => step(1));
$("open").addEventListener("click", () => openBrowser(true));
$("close").addEventListener("click", () => openBrowser(false));
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  openBrowser(false);
  pinned = null;
  highlight(null, null);
});
addEventListener("hashchange", () => {
  const number = Number(location.hash.slice(1)) - 1;
  if (pairs[number] && number !== current) show(number);
});
let width = 0;
new ResizeObserver(() => {
  if (innerWidth !== width && shown) {
    width = innerWidth;
    layOut();
  }
}).observe(document.body);
document.fonts?.ready.then(() => shown && layOut());

$("confidence").hidden = threshold === null;
$("least").value = least;
show(pairs[Number(location.hash.slice(1)) - 1] ? Number(location.hash.slice(1)) - 1 : 0);
filter();
