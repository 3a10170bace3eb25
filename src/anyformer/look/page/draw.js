// Drawing: colors of shares, maps on canvases, lines between tokens, curves and bars.

// Both are computed again when the theme changes.
let palette = null;
const named = new Map();

function colourOf(name) {
  if (!named.has(name)) {
    const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    named.set(name, [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16)));
  }
  return named.get(name);
}

function mixed(one, other, share) {
  return one.map((value, i) => Math.round(value + (other[i] - value) * share));
}

// 256 colors from low over middle to high, as pixels
function colours() {
  if (palette) return palette;
  const [low, middle, high] = ["--low", "--middle", "--high"].map(colourOf);
  palette = new Uint32Array(256);
  for (let i = 0; i < 256; i++) {
    const [r, g, b] = i < 128 ? mixed(low, middle, i / 128) : mixed(middle, high, (i - 128) / 127);
    palette[i] = (255 << 24) | (b << 16) | (g << 8) | r;
  }
  return palette;
}

function tint(share, name = "--plus") {
  const [r, g, b] = mixed(colourOf("--back"), colourOf(name), Math.min(Math.max(share, 0), 1) * 0.8);
  return `rgb(${r},${g},${b})`;
}

function readable(share) {  // the color of text on the tint of this share
  const dark = document.documentElement.dataset.theme === "dark";
  return share > 0.6 ? (dark ? "#14161a" : "#fff") : "";
}

const twoSided = (value, most) => tint(Math.abs(value) / (most || 1), value < 0 ? "--minus" : "--plus");

function paint(canvas, bytes, rows, columns) {
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows), pixels = new Uint32Array(image.data.buffer), table = colours();
  for (let i = 0; i < pixels.length; i++) pixels[i] = table[bytes[i]];
  canvas.getContext("2d").putImageData(image, 0, 0);
}

// All small maps on one canvas, one row per map, in cells of CELL pixels
const CELL = 44;

function paintSmall(canvas) {
  const most = Math.max(...data.maps.map((map) => map.heads), 1);
  canvas.width = most * CELL;
  canvas.height = data.maps.length * CELL;
  const context = canvas.getContext("2d"), table = colours();
  data.maps.forEach((map, row) => {
    const bytes = unpack(map.small), [high, wide] = map.side, inner = CELL - 4;
    const image = new ImageData(inner, inner), pixels = new Uint32Array(image.data.buffer);
    for (let head = 0; head < map.heads; head++) {
      const start = head * high * wide;
      for (let y = 0; y < inner; y++) {
        const line = start + Math.floor((y * high) / inner) * wide;
        for (let x = 0; x < inner; x++) pixels[y * inner + x] = table[bytes[line + Math.floor((x * wide) / inner)]];
      }
      context.putImageData(image, head * CELL + 2, row * CELL + 2);
    }
  });
}

// Two columns of tokens with lines between them; the width of a line shows the attention weight
function lines(left, right, bytes, columns, row, from, to, pick) {
  const height = 17, shownRows = left.slice(from, to), base = columns === left.length ? from : 0;
  const keys = right.slice(base, base + 40), size = Math.max(shownRows.length, keys.length) * height + 8;
  const svg = drawn("svg", { width: 400, height: size, viewBox: `0 0 400 ${size}`, role: "img",
    "aria-label": "lines from each token to the tokens it attends to" });
  const colour = getComputedStyle(document.documentElement).getPropertyValue("--mark");
  for (let i = 0; i < shownRows.length; i++) {
    for (let j = 0; j < keys.length; j++) {
      const share = (bytes[(from + i) * columns + base + j] / 255) ** 2, here = from + i === row;
      if (share < (here ? 0.01 : 0.08)) continue;
      svg.append(drawn("line", { x1: 136, x2: 264, y1: (i + 0.5) * height + 4, y2: (j + 0.5) * height + 4,
        stroke: colour, "stroke-width": here ? 1 + 3 * share : 1, "stroke-opacity": here ? 0.25 + 0.75 * share : 0.13 }));
    }
  }
  shownRows.forEach((token, i) => {
    const text = drawn("text", { x: 130, y: (i + 0.8) * height + 3, "text-anchor": "end" }, shown(token).slice(0, 16));
    if (from + i === row) text.setAttribute("class", "chosen");
    text.addEventListener("click", () => pick(from + i));
    svg.append(text);
  });
  keys.forEach((token, j) => svg.append(
    drawn("text", { x: 270, y: (j + 0.8) * height + 3 }, shown(token).slice(0, 16))));
  return svg;
}

// A curve of values by step, with a mark at one value
function curve(values, label, mark = -1, unit = (value) => value.toPrecision(3)) {
  const most = Math.max(...values, 1e-9), width = 440, height = 130;
  const x = (i) => 50 + (i * (width - 70)) / Math.max(values.length - 1, 1), y = (value) => 110 - (value / most) * 95;
  const svg = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  svg.append(drawn("line", { x1: 50, x2: width - 20, y1: 110, y2: 110, class: "axis" }));
  svg.append(drawn("polyline", { points: values.map((value, i) => `${x(i)},${y(value)}`).join(" "), fill: "none",
    stroke: getComputedStyle(document.documentElement).getPropertyValue("--plus"), "stroke-width": 2 }));
  svg.append(drawn("text", { x: 4, y: 20 }, unit(most)), drawn("text", { x: 4, y: 114 }, "0"),
    drawn("text", { x: 50, y: 127 }, label), drawn("text", { x: width - 20, y: 127, "text-anchor": "end" },
      String(values.length - 1)));
  if (mark >= 0 && mark < values.length) {
    svg.append(drawn("circle", { cx: x(mark), cy: y(values[mark]), r: 4,
      fill: getComputedStyle(document.documentElement).getPropertyValue("--mark") }));
    svg.append(drawn("text", { x: Math.min(x(mark) + 6, width - 60), y: y(values[mark]) - 5 }, unit(values[mark])));
  }
  return svg;
}

function bar(name, value, most, click) {
  const inner = make("i");
  inner.style.width = `${(100 * Math.abs(value)) / (most || 1)}%`;
  inner.style.background = value < 0 ? "var(--minus)" : "var(--plus)";
  const title = make("span", { title: name }, name);
  if (click) title.append(" ", make("button", { type: "button", onclick: click, ariaLabel: `show ${name}` }, "→"));
  return make("div", { className: "bar" }, title, make("span", {}, inner), make("span", {}, value.toFixed(3)));
}

// A table of numbers as colors; click(i, j) is called when a cell is clicked
function heat(rows, columns, values, click, note = (value) => value.toFixed(2), isChosen = () => false) {
  const most = Math.max(...values.flat().map((value) => Math.abs(value ?? 0)), 1e-9);
  const table = make("table", {}, make("tr", {}, make("th", {}, ""), ...columns.map((name) => make("th", {}, name))));
  rows.forEach((name, i) => {
    const line = make("tr", {}, make("th", {}, name));
    values[i].forEach((value, j) => {
      const cell = make("td", { className: "cell" }, value === null || value === undefined ? "" : note(value));
      if (value !== null && value !== undefined) {
        cell.style.background = twoSided(value, most);
        cell.style.color = readable(Math.abs(value) / most);
        if (click) cell.addEventListener("click", () => click(i, j));
      }
      if (isChosen(i, j)) cell.classList.add("chosen");
      line.append(cell);
    });
    table.append(line);
  });
  return make("div", { className: "scroll" }, table);
}
