// The residual stream, changes, and heads that matter.

const brief = (address) => address.replace(/^(?:decoder|encoder)\.(?:layers\.)?/, "");

async function lensOf() {
  if (!data.served) return data.lens;
  const last = data.tokens.length, from = Math.max(Math.min(chosen.position - 6, last - 12), 0);
  return ask("lens", { positions: Array.from({ length: Math.min(12, last) }, (_, i) => from + i) });
}

async function sharesOf(position) {
  if (data.served) return ask("contributions", { positions: [position] });
  return data.contributions;
}

function streamView(view) {
  const lens = make("div"), norms = make("div"), shares = make("div");
  view.replaceChildren(make("h2", {}, "logit lens: predictions of the head after each layer"), lens, norms,
    make("h2", {}, "contribution of every sublayer and head to the score"), shares);
  view.refresh = async () => {
    const found = await lensOf();
    if (chosen.view !== "stream") return;
    lensTable(lens, norms, found);
    sharesView(shares, await sharesOf(chosen.position));
  };
}

function lensTable(element, norms, found) {
  if (found.why) return element.replaceChildren(why(found.why));
  const all = data.whole ? [0] : found.positions, here = Math.max(all.indexOf(chosen.position), 0);
  const from = data.whole ? 0 : Math.max(Math.min(here - 6, all.length - 12), 0), columns = all.slice(from, from + 12);
  const head = make("tr", {}, make("th", {}, "after"), ...columns.map((place) => make("th", {},
    data.whole ? "whole input" : shown(data.tokens[place] ?? String(place)))));
  const rows = found.depths.map((address, depth) => {
    const cells = columns.map((place, i) => {
      const share = found.chances[depth][from + i], word = found.words[found.tokens[depth][from + i]];
      const cell = make("td", { className: "cell", title: `${word} ${percent(share)}`, onclick: () => {
        const map = data.maps.findIndex((each) => each.address.startsWith(`${address}.`));
        choose({ position: place, ...(map < 0 ? {} : { map }) });
      } }, shown(word).slice(0, 14));
      cell.style.background = tint(share);
      cell.style.color = readable(share);
      if (place === chosen.position && !data.whole) cell.classList.add("chosen");
      return cell;
    });
    return make("tr", {}, make("th", {}, brief(address)), ...cells);
  });
  element.replaceChildren(make("div", { className: "scroll" }, make("table", {}, head, ...rows.reverse())));
  const lengths = found.norms.map((line) => line[Math.min(chosen.position, line.length - 1)]);
  norms.replaceChildren(make("h2", {}, "norm of this token's vector by depth"), curve(lengths, "layers"));
}

function sharesView(element, found) {
  if (found.why) return element.replaceChildren(why(found.why));
  const column = found.positions.indexOf(chosen.position);
  if (column < 0) return element.replaceChildren(why("no contributions at this position in this file; use --serve"));
  const values = found.values.map((line) => line[column]), [, word] = found.tokens[column];
  const order = values.map((_, i) => i).sort((a, b) => Math.abs(values[b]) - Math.abs(values[a])).slice(0, 18);
  const most = Math.max(...values.map(Math.abs));
  const open = (line) => {
    const map = data.maps.findIndex((each) => each.address === line[1]);
    return line[2] === null || map < 0 ? null : () => { choose({ map, head: line[2], view: "attention" }); };
  };
  const bars = order.map((i) => bar(brief(found.lines[i][0]), values[i], most, open(found.lines[i])));
  const headed = [...new Set(found.lines.filter((line) => line[2] !== null).map((line) => line[1]))];
  const number = Math.max(...found.lines.map((line) => (line[2] ?? -1) + 1));
  const grid = headed.map((address) => Array.from({ length: number }, (_, head) => {
    const at = found.lines.findIndex((line) => line[1] === address && line[2] === head);
    return at < 0 ? null : values[at];
  }));
  element.replaceChildren(
    make("p", {}, `score of “${shown(word)}”: ${found.scores[column].toFixed(3)}, the sum of all lines`),
    make("div", { className: "columns" }, make("div", {}, ...bars), number ? heat(headed.map(brief),
      Array.from({ length: number }, (_, i) => `head ${i}`), grid,
      (i, j) => open([null, headed[i], j])?.()) : make("span")));
}

// -- change something

function changeView(view) {
  const result = make("div", { id: "changed", ariaLive: "polite" }), tables = make("div");
  const parts = [make("p", { className: "soft" },
    "Remove or scale a value, or replace it with the value of another text, and see how the prediction changes.")];
  if (data.served) parts.push(changeForm(result), result);
  view.replaceChildren(...parts, tables);
  view.refresh = () => {
    if (!data.served) return tables.replaceChildren(...data.tables.flatMap(patchTable));
    if (!tables.children.length) {
      const kinds = ["head", "sublayer", ...(data.other ? ["position"] : [])];
      tables.append(make("form", {}, ...kinds.map((by) => make("button", { type: "button", onclick: async () => {
        const found = await ask("table", { by, place: chosen.position });
        tables.replaceChildren(tables.firstChild, ...patchTable({ by, ...found }));
      } }, `every ${by}, one at a time`))));
    }
  };
}

function changeForm(result) {
  const names = [...data.sublayers, ...Array.from({ length: data.layers.number }, (_, i) => `${data.layers.address}.${i}`)];
  const at = make("select", { name: "at", ariaLabel: "where" }, ...names.map((name) => make("option", {}, name)));
  const action = make("select", { ariaLabel: "what" }, ...["zero", "scale", ...(data.other ? ["paste"] : [])].map(
    (name) => make("option", {}, name)));
  const scale = make("input", { type: "number", value: "2", step: "0.5", ariaLabel: "times", size: 4 });
  const heads = make("input", { placeholder: "heads: 0,3 or all", ariaLabel: "heads", size: 16 });
  const places = make("input", { placeholder: "positions: 4,5 or all", ariaLabel: "positions", size: 16 });
  const numbers = (input) => input.value.trim() ? input.value.split(",").map(Number) : null;
  const form = make("form", { id: "change", onsubmit: async (event) => {
    event.preventDefault();
    const question = { at: at.value, action: action.value, heads: numbers(heads), positions: numbers(places),
      scale: Number(scale.value), place: chosen.position };
    const found = await ask("change", question);
    if (found.why) return result.replaceChildren(why(found.why));
    result.replaceChildren(make("table", {}, make("tr", {}, ...["", "before", "after", "change"].map((name) =>
      make("th", {}, name))), ...found.rows.map(([word, before, after]) => make("tr", {}, make("td", {}, shown(word)),
      make("td", {}, percent(before)), make("td", {}, percent(after)),
      make("td", {}, `${after >= before ? "+" : ""}${(100 * (after - before)).toFixed(1)}`)))));
  } }, action, at, heads, places, scale, make("button", { type: "submit" }, "change"));
  return form;
}

function patchTable(found) {
  const title = { head: "without each head", sublayer: "without each sublayer",
    position: "with the other text's stream at each layer and position" }[found.by];
  if (found.why) return [make("h2", {}, title), why(found.why)];
  const names = { head: (i) => `head ${i}`, sublayer: () => "change", position: (i) => shown(data.tokens[i] ?? String(i)) };
  const columns = found.columns.map(names[found.by]);
  return [make("h2", {}, `${title}: change of log p(“${shown(found.token)}”), now ${found.before.toFixed(2)}`),
    heat(found.rows.map(brief), columns, found.values, (i, j) => {
      const map = data.maps.findIndex((each) => each.address === found.rows[i]);
      if (found.by === "head" && map >= 0) choose({ map, head: j, view: "attention" });
      if (found.by === "position") choose({ position: found.columns[j] });
    })];
}

// -- heads and units that matter

async function unitsView(element) {
  const position = chosen.position;
  const found = data.served ? await ask("neurons", { positions: [position] }) : data.neurons;
  const column = found.why ? -1 : found.positions.indexOf(position);
  const none = found.why || "no units at this position in this file; use --serve";
  const units = column < 0 ? [] : found.units[column], most = Math.max(...units.map((unit) => Math.abs(unit[3])), 1e-9);
  element.replaceChildren(make("h2", {}, "feed-forward units by their share of the score at the chosen position"),
    ...(column < 0 ? [why(none)] : units.map(([address, unit, active, share]) =>
      bar(`${brief(address)} unit ${unit} (active ${active.toFixed(2)})`, share, most))));
}

function headsView(view) {
  let sorted = "induction";
  const heads = make("div"), units = make("div");
  view.replaceChildren(heads, units);
  view.refresh = async () => {
    const found = data.served ? await ask("heads", {}) : data.heads;
    if (chosen.view !== "heads") return;
    await unitsView(units);
    if (found.why) return heads.replaceChildren(why(found.why));
    const shares = await sharesOf(chosen.position), column = shares.why ? -1 : shares.positions.indexOf(chosen.position);
    const direct = (address, head) => column < 0 ? null
      : shares.values[shares.lines.findIndex((line) => line[1] === address && line[2] === head)]?.[column] ?? null;
    const kinds = Object.keys(found.kinds), rows = [];
    for (const [address, scores] of Object.entries(found.kinds[kinds[0]])) {
      scores.forEach((_, head) => rows.push({ address, head, direct: direct(address, head),
        ...Object.fromEntries(kinds.map((kind) => [kind, found.kinds[kind][address][head]])) }));
    }
    rows.sort((a, b) => Math.abs(b[sorted] ?? 0) - Math.abs(a[sorted] ?? 0));
    const names = [...kinds, "direct"];
    const line = (row) => {
      const map = data.maps.findIndex((each) => each.address === row.address);
      const open = make("button", { type: "button", onclick: () => choose({ map, head: row.head, view: "attention" }) },
        `${brief(row.address)} head ${row.head}`);
      const cells = names.map((name) => {
        const cell = make("td", {}, row[name] === null ? "–" : row[name].toFixed(3));
        cell.style.background = name === "direct" ? "" : tint(row[name] ?? 0);
        return cell;
      });
      const element = make("tr", {}, make("td", {}, open), ...cells);
      if (map === chosen.map && row.head === chosen.head) element.className = "chosen";
      return element;
    };
    heads.replaceChildren(make("p", { className: "soft" }, `Share of attention to the previous token, to an earlier copy of `
      + `the token and to what followed it, ${found.how}; direct: share of the score at the chosen position.`),
    make("div", { className: "scroll" }, make("table", {}, make("tr", {}, make("th", {}, "head"), ...names.map((name) =>
      make("th", {}, make("button", { type: "button", onclick: () => { sorted = name; view.refresh(); } },
        name === sorted ? `${name} ↓` : name)))), ...rows.slice(0, 60).map(line))));
  };
}
