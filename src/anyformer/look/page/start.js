// Tabs, theme, and the current selection.

const VIEWS = { attention: ["Attention", attentionView], stream: ["Residual stream", streamView],
  change: ["Change something", changeView], heads: ["Heads and units", headsView], experts: ["Experts", expertsView],
  state: ["State", stateView] };

function choose(change) {
  const before = chosen.view;
  Object.assign(chosen, change);
  markText(document.getElementById("tokens"), chosen.position);
  if (data.source) markText(document.getElementById("source"), chosen.place);
  if ("position" in change) predictionsView();
  if (chosen.view !== before) return openView();
  const view = document.getElementById("view");
  if (view.refresh) Promise.resolve(view.refresh()).catch((error) => view.append(why(error.message)));
}

function openView() {
  const view = document.getElementById("view");
  for (const tab of document.getElementById("tabs").children) {
    const on = tab.dataset.view === chosen.view;
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
  }
  view.refresh = null;
  VIEWS[chosen.view][1](view);
  choose({});
}

function tabs() {
  const names = Object.keys(VIEWS).filter((name) => name !== "experts" || data.experts.length)
    .filter((name) => name !== "state" || data.state.length);
  const nav = document.getElementById("tabs");
  nav.replaceChildren(...names.map((name) => make("button", { type: "button", role: "tab",
    onclick: () => choose({ view: name }) }, VIEWS[name][0])));
  names.forEach((name, i) => { nav.children[i].dataset.view = name; });
  nav.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    choose({ view: names[(names.indexOf(chosen.view) + step + names.length) % names.length] });
    nav.querySelector('[aria-selected="true"]').focus();
  };
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  palette = null;
  named.clear();
}

function begin() {
  document.getElementById("name").textContent = data.name;
  document.getElementById("notes").textContent = (data.notes || []).join("; ");
  const source = document.getElementById("source");
  source.hidden = !data.source;
  if (data.source) textView(source, data.source, "place");
  textView(document.getElementById("tokens"), data.tokens, "position");
  chosen.position = data.whole ? 0 : data.tokens.length - 1;
  chosen.place = 0;
  if (chosen.map >= data.maps.length) chosen.map = chosen.head = 0;
  if (!data.maps.length && chosen.view === "attention") chosen.view = "stream";
  tabs();
  predictionsView();
  openView();
}

const light = matchMedia("(prefers-color-scheme: dark)");
theme(light.matches ? "dark" : "light");
light.addEventListener("change", () => { theme(light.matches ? "dark" : "light"); openView(); predictionsView(); });
document.getElementById("theme").addEventListener("click", () => {
  theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  predictionsView();
  openView();
});
begin();
