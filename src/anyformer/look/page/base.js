"use strict";
// Shared by all views: the data, the current selection, building elements, and requests to the server.

let data = JSON.parse(document.getElementById("data").textContent);

// position: in the text that is scored; place: in the encoder's input; map and head: of attention; view: the open view
const chosen = { position: 0, place: 0, map: 0, head: 0, view: "attention" };

// Create an element. Children are elements or text; text is never parsed as HTML.
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function drawn(tag, properties, ...children) {  // the same for SVG
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function unpack(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

const shown = (text) => text.replace(/\n/g, "⏎").replace(/\t/g, "⇥")
  .replace(/^ +$|^ | $/g, (spaces) => "␣".repeat(spaces.length)) || "∅";
const percent = (share) => share >= 0.1 ? `${(100 * share).toFixed(0)} %` : `${(100 * share).toFixed(1)} %`;
const why = (line) => make("p", { className: "why" }, line);

// -- attention maps: all T x S bytes of one head, from the file or from the server

const known = new Map();

function mapBytes(index, head) {
  const key = `${index} ${head}`;
  if (!known.has(key)) {
    if (known.size > 24) known.delete(known.keys().next().value);
    known.set(key, data.served ? fetched(`/api/map?map=${index}&head=${head}`) : held(index, head));
  }
  return known.get(key);
}

function held(index, head) {
  const map = data.maps[index], kept = data.held[index][head];
  if (typeof kept === "string") return unpack(kept);
  const places = unpack(kept[0]), values = unpack(kept[1]), rows = map.queries * map.windows;
  const wide = map.keys < 2 ** 15 ? new Int16Array(places.buffer) : new Int32Array(places.buffer);
  const bytes = new Uint8Array(rows * map.keys), each = values.length / rows;
  for (let i = 0; i < values.length; i++) bytes[Math.floor(i / each) * map.keys + wide[i]] = values[i];
  return bytes;
}

async function fetched(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(await answer.text());
  return new Uint8Array(await answer.arrayBuffer());
}

// -- data that the server computes on demand; a file already contains them

const asked = new Map();

async function ask(name, question) {
  const key = name + JSON.stringify(question);
  if (asked.has(key)) return asked.get(key);
  const answer = await fetch(`/api/${name}`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question),
  });
  const found = await answer.json();
  if (asked.size > 60) asked.clear();
  if (name !== "write") asked.set(key, found);
  return found;
}
