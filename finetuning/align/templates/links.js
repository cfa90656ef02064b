// Draws the links of a pair of sentences into an element: lines between words, a matrix of their probabilities,
// and a slider for the lowest one. Uses links.css. Words are set as text, so that they cannot be markup.
//
// pair: {source, target: words; links: [[source word, target word, probability]]}
// state: {threshold: lowest probability, null for no slider; linkAll: whether each source word keeps its likeliest link}
//   and `least`, where the slider is, which the next drawing takes over
"use strict";

function drawLinks(root, pair, state) {
  const HINT = "Point at a word, tap it, or use the arrow keys to see its partners. Underlined words have none.";
  const make = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const sides = [pair.source, pair.target];
  const likeliest = pair.source.map((_, i) =>
    pair.links.filter((link) => link[0] === i).reduce((best, link) => (best && best[2] >= link[2] ? best : link), null),
  );
  const reaches = (link, least) => link[2] >= least || (state.linkAll && likeliest[link[0]] === link);
  let links = [];
  let paths = [];
  let chosen = null; // [side, word]

  /* ---- elements ---- */

  const words = sides.map((side, s) =>
    side.map((text, i) => {
      const word = make("button", { type: "button", className: "word", textContent: text });
      word.tabIndex = i ? -1 : 0; // the arrow keys reach the others
      word.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && mark([s, i]));
      word.addEventListener("pointerleave", () => mark(chosen));
      word.addEventListener("focus", () => mark([s, i]));
      word.addEventListener("blur", () => mark(chosen));
      word.addEventListener("click", () => {
        chosen = String(chosen) === `${s},${i}` ? null : [s, i];
        mark(chosen);
      });
      word.addEventListener("keydown", (event) => move(event, s, i));
      return word;
    }),
  );
  const rows = words.map((side) => make("div", { className: "side", dir: "auto" }, ...side));
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const drawing = make("div", { className: "drawing" }, ...rows, svg);
  const note = make("p", { className: "note soft", ariaLive: "polite" });
  root.className = "links";
  root.replaceChildren(drawing, note);
  const slider = make("input", { type: "range", min: 0.01, max: 0.99, step: 0.01 });
  const count = make("output");
  if (state.threshold !== null) {
    state.least ??= state.threshold;
    slider.value = state.least;
    slider.addEventListener("input", () => {
      state.least = Number(slider.value);
      draw();
    });
    const help = make("span", { textContent: "fainter: less sure · dashed: not in the output" });
    root.prepend(make("label", { className: "soft" }, "Links with a probability from", slider, count, help));
  }
  const MATRIX_WORDS = 150; // of a side; a browser takes seconds to draw more cells, and nobody can read them
  const hasMatrix = Math.min(...sides.map((side) => side.length)) && Math.max(...sides.map((side) => side.length)) <= MATRIX_WORDS;
  const cells = hasMatrix ? pair.source.map(() => pair.target.map(() => make("td"))) : [];
  if (hasMatrix)
    for (const [i, j, probability] of pair.links) cells[i][j].style.setProperty("--v", Math.min(1, probability));
  const heads = sides.map((side) => side.map((text) => make("th", { textContent: text, dir: "auto" })));
  if (hasMatrix) {
    const body = make("tbody", {}, ...cells.map((row, i) => make("tr", {}, heads[0][i], ...row)));
    const table = make("table", {}, make("thead", {}, make("tr", {}, make("th"), ...heads[1])), body);
    cells.forEach((row, i) =>
      row.forEach((cell, j) => cell.addEventListener("pointerenter", () => mark([0, i], j))),
    );
    table.addEventListener("pointerleave", () => mark(chosen));
    const scroll = make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Probabilities of links" });
    scroll.append(table);
    root.append(make("p", { className: "soft", textContent: "Probabilities of the links; a dot is a link that is shown above" }), scroll);
  }

  /* ---- what changes ---- */

  function draw() {
    links = pair.links.filter((link) => reaches(link, state.least ?? 0));
    count.textContent = `${Number(slider.value).toFixed(2)} (${links.length} links)`;
    words.forEach((side, s) =>
      side.forEach((word, i) => word.classList.toggle("alone", !links.some((link) => link[s] === i))),
    );
    cells.forEach((row, i) =>
      row.forEach((cell, j) => cell.classList.toggle("link", links.some((link) => link[0] === i && link[1] === j))),
    );
    layOut();
    mark(chosen);
  }

  /** Sentences one above the other where both fit, else word under word. */
  function layOut() {
    drawing.classList.remove("tall");
    const isTall = rows.some((row) => row.scrollWidth > row.clientWidth + 1);
    drawing.classList.toggle("tall", isTall);
    const box = drawing.getBoundingClientRect();
    const end = (side, i) => {
      const word = words[side][i].getBoundingClientRect();
      return isTall
        ? [(side ? word.left - 3 : word.right + 3) - box.left, word.top + word.height / 2 - box.top]
        : [word.left + word.width / 2 - box.left, (side ? word.top - 3 : word.bottom + 3) - box.top];
    };
    paths = links.map((link) => {
      const [[x, y], [u, v]] = [end(0, link[0]), end(1, link[1])];
      const middle = isTall ? `${(x + u) / 2},${y} ${(x + u) / 2},${v}` : `${x},${(y + v) / 2} ${u},${(y + v) / 2}`;
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("d", `M${x},${y} C${middle} ${u},${v}`);
      path.style.opacity = 0.35 + 0.65 * Math.min(1, link[2]);
      if (state.threshold !== null && !reaches(link, state.threshold)) path.setAttribute("stroke-dasharray", "4 4");
      return path;
    });
    svg.replaceChildren(...paths);
  }

  /** Marks a word and its partners, or with `target` a cell of the matrix, and says who they are; null for none. */
  function mark(word, target = null) {
    const isOf = (link) => word && link[word[0]] === word[1] && (target === null || link[1] === target);
    const found = links.filter(isOf);
    const isOn = (s, i) =>
      (word && word[0] === s && word[1] === i) || (s === 1 && i === target) || found.some((link) => link[s] === i);
    drawing.classList.toggle("busy", word !== null);
    [words, heads].forEach((all) =>
      all.forEach((side, s) => side.forEach((one, i) => one.classList.toggle("on", Boolean(isOn(s, i))))),
    );
    words.forEach((side, s) => side.forEach((one, i) => one.classList.toggle("chosen", String(chosen) === `${s},${i}`)));
    paths.forEach((path, n) => path.classList.toggle("on", Boolean(isOf(links[n]))));
    if (!word) return void (note.textContent = HINT);
    const isolate = (text) => `\u2068${text}\u2069`; // a word from the right leaves the rest in its place
    const name = state.threshold === null ? "score" : "probability";
    const listed = found.map((link) => `${isolate(sides[1 - word[0]][link[1 - word[0]]])} (${name} ${link[2].toFixed(2)})`);
    const cell = target === null ? "" : ` / ${isolate(sides[1][target])}`;
    const says = listed.length ? `is linked with ${listed.join(", ")}` : "is not linked";
    note.textContent = `${isolate(sides[word[0]][word[1]])}${cell} ${says}`;
  }

  /** The arrow keys: along the sentence, and across to the first partner. */
  function move(event, s, i) {
    const isTall = drawing.classList.contains("tall");
    const isRtl = getComputedStyle(rows[s]).direction === "rtl";
    const along = isTall ? ["ArrowUp", "ArrowDown"] : ["ArrowLeft", "ArrowRight"];
    if (!isTall && isRtl) along.reverse();
    const steps = { [along[0]]: i - 1, [along[1]]: i + 1, Home: 0, End: words[s].length - 1 };
    let to;
    if (event.key in steps) to = words[s][steps[event.key]];
    else if (event.key.startsWith("Arrow")) to = words[1 - s][links.find((link) => link[s] === i)?.[1 - s] ?? 0];
    else if (event.key === "Escape") mark((chosen = null));
    else return;
    event.preventDefault();
    if (!to) return;
    words.flat().forEach((word) => (word.tabIndex = word === to || (!words[s].includes(to) && word === words[s][0]) ? 0 : -1));
    to.focus();
  }

  let width = 0; // drawing changes the height, which is no reason to draw again
  new ResizeObserver(() => {
    if (root.clientWidth !== width && drawing.isConnected) {
      width = root.clientWidth;
      draw();
    }
  }).observe(drawing);
  draw();
}
