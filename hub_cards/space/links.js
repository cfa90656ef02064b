// The links of the tab "Word links", as the page of `word-align --html` draws them; gradio runs this once for `element`.
let shown = null; // of the drawing in sight: words of both sides, links, partners of each word, paths, pinned word

function read() {
  const drawing = element.querySelector(".zoo-drawing");
  shown = null;
  if (!drawing) return;
  const sides = [...drawing.querySelectorAll(".zoo-side")];
  const words = sides.map((side) => [...side.children]);
  const partners = words.map((side) => side.map(() => []));
  const links = JSON.parse(drawing.dataset.links);
  for (const [i, j, probability] of links) {
    partners[0][i].push([j, probability]);
    partners[1][j].push([i, probability]);
  }
  words.forEach((side, s) =>
    side.forEach((word, i) => {
      word.classList.toggle("alone", !partners[s][i].length);
      word.tabIndex = i ? -1 : 0; // the arrow keys reach the others
    }),
  );
  shown = { drawing, sides, words, links, partners, paths: [], pinned: null };
  layOut();
  highlight(null);
}

/** Sentences one above the other where both fit, else word under word. */
function layOut() {
  if (!shown || !element.clientWidth) return; // the tab is not open
  const { drawing, sides, words, links } = shown;
  drawing.classList.remove("tall");
  const isTall = sides.some((side) => side.scrollWidth > side.clientWidth + 1);
  drawing.classList.toggle("tall", isTall);
  const svg = drawing.querySelector("svg");
  const box = drawing.getBoundingClientRect();
  const end = (side, i) => {
    const word = words[side][i].getBoundingClientRect();
    return isTall
      ? [(side ? word.left - 3 : word.right + 3) - box.left, word.top + word.height / 2 - box.top]
      : [word.left + word.width / 2 - box.left, (side ? word.top - 3 : word.bottom + 3) - box.top];
  };
  const add = (parent, tag, attributes) => {
    const part = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", tag));
    for (const [name, value] of Object.entries(attributes)) part.setAttribute(name, value);
    return part;
  };
  svg.replaceChildren();
  shown.paths = links.map(([i, j, probability], number) => {
    const [[x, y], [u, v]] = [end(0, i), end(1, j)];
    const [x2, y2] = isTall ? [u, y] : [x, v];
    const id = `zoo-link-${number}`;
    const gradient = add(svg, "linearGradient", { id, gradientUnits: "userSpaceOnUse", x1: x, y1: y, x2, y2 });
    add(gradient, "stop", { offset: 0, class: "zoo-first" });
    add(gradient, "stop", { offset: 1, class: "zoo-second" });
    const middle = isTall ? `${(x + u) / 2},${y} ${(x + u) / 2},${v}` : `${x},${(y + v) / 2} ${u},${(y + v) / 2}`;
    return add(svg, "path", {
      d: `M${x},${y} C${middle} ${u},${v}`,
      stroke: `url(#${id})`,
      style: `opacity: ${0.4 + 0.6 * Math.min(1, probability)}`,
    });
  });
}

/** Marks a word and its partners, and says who they are; null for none. */
function highlight(word) {
  if (!shown) return;
  const { drawing, words, links, partners, paths } = shown;
  const side = words.findIndex((all) => all.includes(word));
  const i = side < 0 ? -1 : words[side].indexOf(word);
  const found = side < 0 ? [] : partners[side][i];
  drawing.classList.toggle("busy", side >= 0);
  words.forEach((all, s) =>
    all.forEach((other, j) => {
      other.classList.toggle("on", other === word);
      other.classList.toggle("partner", s === 1 - side && found.some(([n]) => n === j));
    }),
  );
  paths.forEach((path, n) => path.classList.toggle("on", side >= 0 && links[n][side] === i));
  const isolate = (text) => `\u2068${text}\u2069`; // a word from the right leaves the rest in its place
  const listed = found.map(([j, p]) => `${isolate(words[1 - side][j].textContent)} (probability ${p.toFixed(2)})`);
  element.querySelector(".zoo-partners").textContent =
    side < 0
      ? "Point at a word, tap it, or step through the words with the arrow keys to see its partners. Dotted words have none."
      : `${isolate(word.textContent)} ${listed.length ? `is linked with ${listed.join(", ")}` : "has no partner"}`;
}

// what is marked where nothing is pointed at; keys scroll the page under a mouse that rests
const resting = () => element.querySelector(".zoo-word:focus-visible") ?? shown?.pinned ?? null;
const pointed = (event) => event.target.closest?.(".zoo-word") ?? resting();
element.addEventListener("pointerover", (event) => event.pointerType === "mouse" && highlight(pointed(event)));
element.addEventListener("pointerleave", () => highlight(resting()));
element.addEventListener("focusin", (event) => {
  const word = event.target.closest(".zoo-word");
  if (!shown || !word) return;
  for (const other of word.parentElement.children) other.tabIndex = other === word ? 0 : -1;
  if (word.matches(":focus-visible")) highlight(word);
});
element.addEventListener("focusout", () => highlight(resting()));
element.addEventListener("keydown", (event) => {
  const word = event.target.closest(".zoo-word");
  if (!shown || !word) return;
  const { drawing, sides, words, partners } = shown;
  const side = sides.indexOf(word.parentElement);
  const i = words[side].indexOf(word);
  const isTall = drawing.classList.contains("tall");
  const isRtl = getComputedStyle(word.parentElement).direction === "rtl";
  const [back, forward] = isTall
    ? ["ArrowUp", "ArrowDown"]
    : isRtl
      ? ["ArrowRight", "ArrowLeft"]
      : ["ArrowLeft", "ArrowRight"];
  const steps = { [back]: i - 1, [forward]: i + 1, Home: 0, End: words[side].length - 1 };
  let to;
  if (event.key in steps) to = words[side][steps[event.key]];
  else if (event.key.startsWith("Arrow")) to = words[1 - side][partners[side][i][0]?.[0] ?? 0];
  else return;
  event.preventDefault();
  to?.focus();
});
element.addEventListener("click", (event) => {
  if (!shown) return;
  const word = event.target.closest(".zoo-word");
  shown.pinned = word === shown.pinned ? null : word;
  highlight(shown.pinned);
});
watch("value", read);
let width = 0; // drawing changes the height, which is no reason to draw again
new ResizeObserver(() => {
  if (element.clientWidth !== width) {
    width = element.clientWidth;
    layOut();
  }
}).observe(element);
document.fonts.ready.then(layOut);
read();
