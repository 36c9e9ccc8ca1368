// The live parts of the console. Every page works without this file; it loads payloads in place, keeps open pages up to
// date, and adds a few keys. It creates no markup: everything it shows is escaped by the server.

// -- payloads, when they are opened -----------------------------------------------------------------------------

async function load(details) {
  const target = details.querySelector(".loaded");
  if (!details.open || details.dataset.loaded || !target) return;
  details.dataset.loaded = "yes";
  try {
    const answer = await fetch(details.dataset.load, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const found = page.querySelector(".payload, main p");
    if (found) target.replaceChildren(document.importNode(found, true));
  } catch {
    delete details.dataset.loaded; // the link inside still works
  }
}

document.addEventListener("toggle", (event) => {
  if (event.target.matches?.("details[data-load]")) load(event.target);
}, true);

// -- keeping an open page up to date ----------------------------------------------------------------------------

let again = Number(document.body.dataset.again || 0);
let news = document.body.dataset.news || ""; // the address of the change poll, which is cheap
let latest = Number(document.body.dataset.latest || 0); // seconds after which the page is loaded in any case
let shown = performance.now();
let timer = 0;
const light = document.getElementById("live");

function schedule(wait = again) {
  clearTimeout(timer);
  if (light) light.hidden = !again;
  if (again && !document.hidden) timer = setTimeout(turn, wait * 1000);
}

async function turn() {
  const old = (performance.now() - shown) / 1000;
  if (!news || old >= latest) return refresh();
  try {
    const answer = await fetch(news, { headers: { Accept: "application/json" } });
    const poll = answer.status === 200 ? await answer.json() : { changed: true };
    if (poll.changed) return refresh();
    schedule(Math.min(poll.again, Math.max(latest - old, 0.1)));
  } catch {
    refresh();
  }
}

// Whether a part has the focus or a selection: it is not replaced then.
function busy(part) {
  const selection = document.getSelection();
  return part.contains(document.activeElement) && document.activeElement !== document.body
    || selection && !selection.isCollapsed && part.contains(selection.anchorNode);
}

// Keep what is open, with its loaded content, and the scroll positions of drawings.
function keep(old, fresh) {
  for (const details of old.querySelectorAll("details[open]")) {
    const row = details.closest("[id]")?.id || "";
    const same = [...fresh.querySelectorAll("details")].find((other) => details.dataset.load
      ? other.dataset.load === details.dataset.load
      : !other.dataset.load && (other.closest("[id]")?.id || "") === row);
    if (!same) continue;
    if (details.dataset.load) same.replaceWith(details);
    else same.open = true;
  }
  const scrolled = [...old.querySelectorAll(".drawing")].map((part) => part.scrollLeft);
  return () => fresh.querySelectorAll(".drawing").forEach((part, i) => { part.scrollLeft = scrolled[i] || 0; });
}

function replace(page) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const found = page.getElementById(old.id);
    if (!found || found.isEqualNode(old) || busy(old)) continue;
    const fresh = document.importNode(found, true);
    const marked = old.querySelector(".marked")?.id;
    const scroll = keep(old, fresh);
    old.replaceWith(fresh);
    scroll();
    if (marked) document.getElementById(marked)?.classList.add("marked");
  }
  document.title = page.title;
}

async function refresh() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (answer.status === 200 || page.body.dataset.again) {
      replace(page);
      again = Number(page.body.dataset.again || 0);
      news = page.body.dataset.news || "";
      latest = Number(page.body.dataset.latest || 0);
      shown = performance.now();
    } else if (answer.status === 401 || answer.status === 404) {
      again = 0;
    } else if (answer.status !== 304) {
      again = Math.min(again * 2, 60);
    }
  } catch {
    again = Math.min(again * 2, 60);
  }
  schedule();
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (again) refresh();
});

// -- keys ----------------------------------------------------------------------------------------------------

const help = document.getElementById("help");

function step(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  if (!rows.length) return;
  const now = rows.findIndex((row) => row.classList.contains("marked"));
  rows[now]?.classList.remove("marked");
  const next = rows[Math.max(0, Math.min(rows.length - 1, now + by))];
  next.classList.add("marked");
  next.scrollIntoView({ block: "nearest" });
}

const KEYS = {
  "/": () => document.getElementById("find")?.focus(),
  "?": () => (help.open ? help.close() : help.showModal()),
  j: () => step(1),
  k: () => step(-1),
  Enter: () => document.querySelector(".marked a.id, .marked a")?.click(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const field = event.target.closest?.(event.key === "Enter" ? "input, select, textarea, button, a, summary" : "input, select, textarea");
  if (field) return;
  const act = KEYS[event.key];
  if (act) {
    event.preventDefault();
    act();
  }
});

// -- light or dark -------------------------------------------------------------------------------------------

const theme = document.querySelector("[data-theme-button]");
if (theme) {
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    document.cookie = `stepfast_theme=${root.dataset.theme}; path=/; max-age=31536000; samesite=strict`;
  });
}
const keys = document.querySelector("[data-help-button]");
if (keys) {
  keys.hidden = false;
  keys.addEventListener("click", () => help.showModal());
}

schedule();
