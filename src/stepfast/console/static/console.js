// The live parts of the console. Every page works without this file; it loads payloads in place, keeps open pages up to
// date, and adds a few keys. It makes no markup of its own: what it shows comes from the server, escaped there.

const TAB = crypto.getRandomValues(new Uint32Array(2)).join("-");

// -- payloads, when somebody opens them -------------------------------------------------------------------------

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
    delete details.dataset.loaded; // the link inside still leads there
  }
}

document.addEventListener("toggle", (event) => {
  if (event.target.matches?.("details[data-load]")) load(event.target);
}, true);

// -- keeping an open page up to date ----------------------------------------------------------------------------

let again = Number(document.body.dataset.again || 0);
let timer = 0;
const light = document.getElementById("live");

function schedule() {
  clearTimeout(timer);
  if (light) light.hidden = !again;
  if (again && !document.hidden) timer = setTimeout(refresh, again * 1000);
}

function busy(part) {
  const selection = document.getSelection();
  return part.contains(document.activeElement) && document.activeElement !== document.body
    || selection && !selection.isCollapsed && part.contains(selection.anchorNode)
    || part.querySelector("details[open]") !== null;
}

function replace(page) {
  for (const old of document.querySelectorAll("[data-live]")) {
    const fresh = page.getElementById(old.id);
    if (!fresh || fresh.isEqualNode(old) || busy(old)) continue;
    const marked = old.querySelector(".marked")?.id;
    old.replaceWith(document.importNode(fresh, true));
    if (marked) document.getElementById(marked)?.classList.add("marked");
  }
  document.title = page.title;
}

async function refresh() {
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html", "Stepfast-Tab": TAB } });
    if (answer.status === 200) {
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      replace(page);
      again = Number(page.body.dataset.again || 0);
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
  if (event.target.closest?.("input, select, textarea, button, a, summary") && event.key !== "Escape") return;
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
