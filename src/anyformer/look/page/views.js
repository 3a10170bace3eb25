// The text with its predictions, attention, experts and the state.

function rowsOf(map) { return fitted(map.of === "source" ? data.source : data.tokens, map.queries * map.windows); }
function keysOf(map) { return fitted(map.kind === "cross" || map.of === "source" ? data.source : data.tokens, map.keys); }
function fitted(words, number) {  // windows and shortened sequences do not match the tokens: number their positions
  return words && words.length === number ? words : Array.from({ length: number }, (_, i) => String(i));
}
function rowOf(map) {
  return Math.min(map.of === "source" ? chosen.place : chosen.position, map.queries * map.windows - 1);
}
function pickRow(map, row) { choose(map.of === "source" ? { place: row } : { position: row }); }

// -- text and predictions

function textView(element, words, name) {
  const spans = words.map((word, i) => {
    const span = make("span", { role: "option", onclick: () => choose({ [name]: i }) },
      word.trim() ? shown(word).replace(/^␣|␣$/g, " ") : shown(word));  // between words, a gap shows the space
    const sure = name === "position" && data.writes && i > 0 && likely(i - 1, word);
    if (name === "position" && data.ids) span.title = `position ${i}, token id ${data.ids[i]}`;
    if (sure) span.style.borderBottomColor = tint(sure);
    return span;
  });
  element.replaceChildren(...spans);
  element.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -words.length, End: words.length }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    choose({ [name]: Math.min(Math.max(chosen[name] + step, 0), words.length - 1) });
  };
}

function likely(position, word) {  // the probability of a word if it is among the shown predictions, otherwise 0
  const found = (data.predictions[position] || []).find((each) => each[0] === word);
  return found ? found[1] : 0;
}

function markText(element, index) {
  for (const old of element.querySelectorAll('[aria-selected="true"]')) old.setAttribute("aria-selected", "false");
  const span = element.children[index];
  if (!span) return;
  span.setAttribute("aria-selected", "true");
  if (span.offsetTop < element.scrollTop || span.offsetTop > element.scrollTop + element.clientHeight - 24) {
    element.scrollTop = span.offsetTop - element.offsetTop - 40;
  }
}

function predictionsView() {
  const element = document.getElementById("predictions");
  const found = data.predictions[data.whole ? 0 : chosen.position];
  if (!found) return element.replaceChildren(make("span", { className: "soft" }, "this model has no predictions here"));
  const intro = data.whole ? "whole input:" : data.writes ? `after “${shown(data.tokens[chosen.position] ?? "")}”:`
    : `at “${shown(data.tokens[chosen.position] ?? "")}”:`;
  const canWrite = data.served && data.writes;
  element.replaceChildren(make("span", { className: "soft" }, intro), ...found.map(([word, share, number]) => {
    const inside = [shown(word), make("b", {}, percent(share))];
    const box = canWrite
      ? make("button", { type: "button", className: "word", title: "append this token",
        onclick: () => writeOn(number) }, ...inside)
      : make("span", { className: "word" }, ...inside);
    box.style.background = tint(share * 0.8);
    return box;
  }));
}

async function writeOn(number) {
  const found = await ask("write", { position: chosen.position, number });
  if (found.why) return document.getElementById("predictions").append(why(found.why));
  data = { ...data, ...found };
  known.clear();
  asked.clear();
  begin();
}

// -- attention

function attentionView(view) {
  if (!data.maps.length) return view.replaceChildren(why("this model has no attention weights"));
  const canvas = make("canvas"), frame = make("div", { className: "frame" }), large = make("canvas");
  const line = make("div", { className: "frame" });
  const about = make("p", { className: "soft", ariaLive: "polite" });
  const labels = make("div", { className: "soft" });
  const grid = make("div", { className: "grid", id: "maps", tabIndex: 0, role: "group",
    ariaLabel: "all layers and heads; arrow keys move" }, canvas, frame);
  paintSmall(canvas);
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    pickHead(Math.floor((event.clientY - box.top) / CELL), Math.floor((event.clientX - box.left) / CELL));
  });
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    pickHead(chosen.map + step[0], chosen.head + step[1]);
  });
  large.className = "large";
  large.id = "large";
  large.addEventListener("click", (event) => {
    const map = data.maps[chosen.map], box = large.getBoundingClientRect();
    pickRow(map, Math.floor(((event.clientY - box.top) / box.height) * map.queries * map.windows));
  });
  const detail = make("div", { id: "detail" });
  view.replaceChildren(make("div", { className: "columns" },
    make("div", {}, make("h2", {}, "every layer (down) and head (across)"), make("div", { className: "scroll" }, grid),
      labels), make("div", {}, about, make("div", { className: "axes" },
      make("span", { className: "across" }, "attended to (key) →"), make("span", { className: "down" }, "← attends (query)"),
      make("div", { className: "grid" }, large, line))), detail));
  view.refresh = async () => {
    const map = data.maps[chosen.map], rows = map.queries * map.windows;
    Object.assign(frame.style, { left: `${chosen.head * CELL}px`, top: `${chosen.map * CELL}px`, width: `${CELL}px`,
      height: `${CELL}px` });
    const cross = map.kind === "cross" ? ", from the text to the encoder's output" : "";
    const windows = map.windows > 1 ? `, ${map.windows} windows below each other` : "";
    about.textContent = `${map.address}, head ${chosen.head}${cross}${windows}: rows attend to columns`;
    const key = `${chosen.map} ${chosen.head}`, found = mapBytes(chosen.map, chosen.head);
    const bytes = found instanceof Uint8Array ? found : await found;
    if (key !== `${chosen.map} ${chosen.head}` || chosen.view !== "attention") return;
    if (large.dataset.key !== key) paint(large, bytes, rows, map.keys);
    large.dataset.key = key;
    Object.assign(line.style, { left: 0, width: "100%", top: `${(100 * rowOf(map)) / rows}%`, height: `${100 / rows}%` });
    detailView(detail, map, bytes);
  };
}

function pickHead(index, head) {
  const map = Math.min(Math.max(index, 0), data.maps.length - 1);
  choose({ map, head: Math.min(Math.max(head, 0), data.maps[map].heads - 1) });
}

function detailView(element, map, bytes) {
  const row = rowOf(map), rows = rowsOf(map), keys = keysOf(map), line = bytes.subarray(row * map.keys, (row + 1) * map.keys);
  const order = Array.from(line.keys()).sort((a, b) => line[b] - line[a]).slice(0, 8).filter((i) => line[i] > 0);
  const strongest = order.map((i) => `“${shown(keys[i])}” (${i}) ${percent((line[i] / 255) ** 2)}`).join(", ");
  const from = Math.max(Math.min(row - 12, rows.length - 28), 0);
  const parts = [make("h2", {}, `“${shown(rows[row])}” (${row}) attends to`), make("p", {}, strongest || "nothing")];
  const media = data.media;
  if (media.image && (map.of === "source" || map.kind === "cross" || !data.source)) parts.push(overlay(media, line));
  parts.push(lines(rows, keys, bytes, map.keys, row, from, from + 28, (i) => pickRow(map, i)));
  element.replaceChildren(...parts);
}

// the attention of a row, over the image or the spectrogram
function overlay(media, line) {
  const high = media.grid[0], wide = media.grid[1] || line.length, canvas = make("canvas");
  const first = line.length - high * wide;  // learned tokens are before the patches
  if (first < 0) return make("span");
  const bytes = line.slice(first), most = Math.max(...bytes, 1);
  paint(canvas, bytes.map((value) => Math.round((255 * value) / most)), high, wide);
  canvas.style.mixBlendMode = "hard-light";
  return make("div", { className: "seen" }, make("img", { src: media.image, alt: media.about }), canvas);
}

// -- experts and state

function expertsView(view) {
  if (!data.experts.length) return view.replaceChildren(why("this model has no experts"));
  view.refresh = () => {
    const tables = data.experts.map((layer) => {
      const name = layer.of === "source" ? "place" : "position", here = chosen[name];
      const all = fitted(layer.of === "source" ? data.source : data.tokens, layer.experts.length);
      const from = Math.max(Math.min(here - 12, all.length - 24), 0), to = from + 24, words = all.slice(from, to);
      const ways = layer.experts[0].map((_, k) => layer.experts.slice(from, to).map((each, i) => {
        const dropped = each[k] >= layer.number;
        const cell = make("td", { className: "cell", title: dropped ? "no room: dropped" : `expert ${each[k]}`,
          onclick: () => choose({ [name]: from + i }) }, dropped ? "×" : String(each[k]));
        const share = layer.weights[from + i][k];
        if (!dropped) cell.style.background = `hsl(${(360 * each[k]) / layer.number} 60% 55% / ${0.2 + 0.6 * share})`;
        if (from + i === here) cell.classList.add("chosen");
        return cell;
      }));
      return make("div", { className: "scroll" }, make("h2", {}, `${layer.address}: ${layer.number} experts`),
        make("table", {}, make("tr", {}, ...words.map((word) => make("th", {}, shown(word)))),
          ...ways.map((cells) => make("tr", {}, ...cells))));
    });
    view.replaceChildren(...tables);
  };
}

function stateView(view) {
  if (!data.state.length) return view.replaceChildren(why("this model has no state between tokens"));
  const size = (bytes) => bytes < 1e4 ? `${bytes} B` : bytes < 1e7 ? `${(bytes / 1e3).toFixed(0)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;
  view.refresh = () => view.replaceChildren(make("h2", {}, "size of the state after each token"),
    curve(data.state, "tokens read", chosen.position, size),
    make("p", { className: "soft" }, data.state.length > 1 && data.state[0] === data.state[data.state.length - 1]
      ? "recurrent state: the same size at every length" : "KV cache: it grows with the text"));
}
