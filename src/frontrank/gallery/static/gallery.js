(() => {
  "use strict";
  const main = document.getElementById("main");
  const live = document.getElementById("live");
  const trouble = document.getElementById("trouble");
  const help = document.getElementById("help");
  const narrow = matchMedia("(max-width: 820px)");
  let asking = null;
  let polling = 0, settling = 0;
  let again = null;  // what the button of a complaint does
  let sent = { name: "", file: null };  // the last upload, for when the server has forgotten it

  const say = (text) => { live.textContent = ""; requestAnimationFrame(() => { live.textContent = text; }); };
  function complain(text, remedy = null, named = "Try again") {
    again = remedy;
    trouble.querySelector("p").textContent = text;
    trouble.querySelector(".again").hidden = !remedy;
    trouble.querySelector(".again").textContent = named;
    if (!text && trouble.contains(document.activeElement)) main.focus({ preventScroll: true });
    trouble.hidden = !text;
  }
  const address = () => location.pathname + location.search;
  let here = address();  // of the page that is drawn
  const left = new Map();  // address: where its reader was when they left it
  function leave() {
    const from = document.activeElement?.closest?.("#main a")?.getAttribute("href");
    left.set(here, { top: scrollY, from });
    return left.get(here);
  }
  const uploadIn = (url) => new URL(url, location.href).searchParams.get("upload");

  // the server draws every page; here its main part is put in place of the one before, which stays if that fails
  async function show(url, options = {}) {
    const { push = true, body = null, quiet = false, file = null, seen = null } = options;
    asking?.abort();
    const mine = asking = new AbortController();
    const at = address();
    clearTimeout(polling);
    clearTimeout(settling);
    if (!quiet) { complain(""); main.classList.add("waiting"); main.setAttribute("aria-busy", "true"); }
    try {
      const how = { signal: mine.signal, headers: { Accept: "text/html" }, credentials: "same-origin" };
      const response = await fetch(url, body ? { ...how, method: "POST", body } : how);
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      if (mine.signal.aborted || (!push && address() !== at)) return;  // somebody went on meanwhile
      if (!page.getElementById("main")) throw new Error("no page");
      if (quiet && !response.ok) return;
      if (response.ok || !push) draw(page, { quiet, seen, url: push ? (body ? response.url : url) : null });
      if (!response.ok) refuse(page, response.status, url, options);
      else if (file) sent = { name: uploadIn(response.url), file };
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!quiet) complain("The server did not answer. Is it still running?", () => show(url, options));
    } finally {
      if (asking === mine) { main.classList.remove("waiting"); main.removeAttribute("aria-busy"); poll(); }
    }
  }

  function refuse(page, status, url, options) {
    const text = page.querySelector("#main .lead")?.textContent ?? "That did not work.";
    if (status === 410 && sent.file && uploadIn(url) === sent.name) complain("The server has forgotten this picture.", () => send(sent.file, new URL(url, location.href).search.slice(1)), "Send it again");
    else if (status === 401) complain("You are signed out.", () => { location.href = `/login?next=${encodeURIComponent(address())}`; }, "Sign in");
    else complain(text, status === 429 || status >= 500 ? () => show(url, options) : null);
  }

  // url: of the new entry in the history, null where an old one is shown again; seen: where its reader was then
  function draw(page, { quiet, url, seen }) {
    const stay = quiet || (url && document.activeElement?.form?.matches("#main [data-live]")) ? sameField() : null;
    const open = main.querySelector(".controls")?.open, place = url && leave();
    for (const name of ["main", "ways"]) {
      const fresh = page.getElementById(name);
      document.getElementById(name).replaceChildren(...document.importNode(fresh, true).childNodes);
    }
    document.title = page.title;
    history.scrollRestoration = "manual";  // a browser would scroll the page before, and go on while ours is drawn
    if (url) {
      history.replaceState(place, "");  // for after a reload, when what is left is forgotten
      history.pushState(null, "", main.querySelector("[data-url]")?.dataset.url ?? url);  // the shortest that says the same
    }
    here = address();
    arrive(quiet, open);
    if (stay?.() || quiet) return;
    const before = seen?.from && main.querySelector(`a[href="${CSS.escape(seen.from)}"]`);
    (before || main.querySelector("h1"))?.focus({ preventScroll: true });
    scrollTo({ top: seen?.top ?? 0, behavior: "instant" });
  }

  // a page that is replaced keeps its reader in the same field, or on the same link
  function sameField() {
    const at = document.activeElement;
    if (!main.contains(at) || !at.matches("[name], a")) return null;
    const alike = at.name ? `[name="${CSS.escape(at.name)}"]` : `a[href="${CSS.escape(at.getAttribute("href"))}"]`;
    const place = [...main.querySelectorAll(alike)].indexOf(at);
    return () => {
      const same = main.querySelectorAll(alike)[place];
      same?.focus({ preventScroll: true });
      return same;
    };
  }

  function poll() {
    clearTimeout(polling);
    if (main.querySelector("[data-poll]")) polling = setTimeout(() => show(location.href, { push: false, quiet: true }), 1500);
  }
  let polled = false;
  function arrive(quiet = false, open = !narrow.matches) {
    for (const one of main.querySelectorAll(".needs-script, .share, .copy")) one.hidden = false;
    main.querySelector(".controls")?.toggleAttribute("open", open);
    const goesOn = main.querySelector("[data-poll]") !== null;
    poll();
    if (!quiet || (polled && !goesOn)) {
      const announcement = main.querySelector("[data-announce]") ?? main.querySelector("h1");
      const measures = [...main.querySelectorAll(".measure")].map((one) => one.textContent.trim());
      say([announcement?.textContent.trim(), ...measures].filter(Boolean).join(". "));
    }
    polled = goesOn;
  }

  function send(file, state = null) {
    const most = Number(document.body.dataset.most);
    if (!file) return;
    if (!most) { complain("This server has no model for new pictures; search from an indexed one."); return; }
    if (file.size > most) { complain(`This file is too large: at most ${(most / 1e6).toLocaleString("en")} MB can be sent.`); return; }
    const body = new FormData();
    body.append("state", state ?? main.querySelector("form.drop")?.elements.state.value ?? "");
    body.append("image", file, "image");  // the name of the file is nobody's business
    say("Searching");
    show("/upload", { body, file });
  }

  const plainClick = (event) => event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
  document.addEventListener("click", async (event) => {
    const at = (selector) => event.target.closest(selector);
    const link = at("a[data-swap]"), share = at(".share");
    if (link && plainClick(event)) {
      event.preventDefault();
      show(link.href);
    } else if (at(".help-button")) {
      help.showModal();
    } else if (at(".trouble .again")) {
      again?.();
    } else if (at(".trouble .close")) {
      complain("");
    } else if (at(".reload")) {
      location.reload();
    } else if (share) {
      try { await navigator.clipboard.writeText(location.href); share.textContent = "Copied"; } catch { share.textContent = "See the address bar"; }
      say(share.textContent);
      setTimeout(() => { share.textContent = "Copy link"; }, 2000);
    }
  });
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.matches("form.drop")) {
      event.preventDefault();
      send(form.elements.image.files[0]);
    } else if (form.matches("form[data-swap]")) {
      event.preventDefault();
      const asked = [...new FormData(form)].filter(([, value]) => value !== "");
      show(`${form.getAttribute("action")}?${new URLSearchParams(asked)}`);
    }
  });
  document.addEventListener("change", (event) => {
    const field = event.target;
    if (field.matches("form.drop input[type=file]")) {
      send(field.files[0]);
      field.value = "";  // so that the same file can be chosen again
    } else if (field.matches("form[data-live] select")) {  // an arrow key chooses, and the next one chooses again
      asking?.abort();
      clearTimeout(settling);
      settling = setTimeout(() => field.form.requestSubmit(), 400);
    } else if (field.matches("form[data-live] input")) {
      field.form.requestSubmit();
    }
  });

  // drop and paste, anywhere on the page; a picture of the page itself is no new one
  let own = false;
  addEventListener("dragstart", () => { own = true; });
  for (const end of ["dragend", "pointerdown"]) addEventListener(end, () => { own = false; });  // what is gone from the page ends no drag
  const takes = (event) => !own && "most" in document.body.dataset && [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (takes(event)) { event.preventDefault(); document.body.classList.add("dropping"); }
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (takes(event)) { event.preventDefault(); send(event.dataTransfer.files[0]); }
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"));
    if (file && "most" in document.body.dataset) { event.preventDefault(); send(file); }
  });

  // arrow keys go from picture to picture by where they are seen
  function neighbour(from, key) {
    const middle = (one) => { const box = one.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; };
    const [x, y] = middle(from), along = key === "ArrowLeft" || key === "ArrowRight" ? 0 : 1;
    const forward = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
    let best = null, least = Infinity;
    for (const one of main.querySelectorAll(".hits.grid a")) {
      const at = middle(one), ahead = forward * (at[along] - [x, y][along]), aside = Math.abs(at[1 - along] - [x, y][1 - along]);
      const far = ahead + 3 * aside;
      if (one !== from && ahead > 4 && far < least && (along || aside < 40)) [least, best] = [far, one];
    }
    return best;
  }
  const singles = document.getElementById("single-keys");
  try { singles.checked = localStorage.getItem("frontrank-keys") !== "off"; } catch { /* for this visit only */ }
  singles.addEventListener("change", () => { try { localStorage.setItem("frontrank-keys", singles.checked ? "on" : "off"); } catch { /* likewise */ } });
  const keys = {
    "/": () => { const box = document.getElementById("filter"); box?.closest("details").setAttribute("open", ""); box?.focus(); },
    "?": () => help.showModal(),
    u: () => main.querySelector("form.drop input[type=file]")?.click(),
  };
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.key === "Escape" && !trouble.hidden) { complain(""); return; }
    if (event.target.closest("input, select, textarea")) { if (event.key === "Escape") event.target.blur(); return; }
    if (event.key.startsWith("Arrow") && !event.shiftKey) {
      const here = document.activeElement?.closest?.(".hits.grid a");
      const next = here ? neighbour(here, event.key) : event.key === "ArrowRight" ? main.querySelector(".hits.grid a") : null;
      if (next) { event.preventDefault(); next.focus({ preventScroll: true }); next.scrollIntoView({ block: "nearest", behavior: "instant" }); }
    } else if (singles.checked && keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });

  // a busy server refuses some pictures: ask again for those, a few times, but not for what is not there
  document.addEventListener("error", async (event) => {
    const image = event.target;
    if (!(image instanceof HTMLImageElement)) return;
    const tried = Number(image.dataset.tried ?? 0);
    if (tried >= 3) return;
    image.dataset.tried = tried + 1;
    await new Promise((go) => setTimeout(go, 1500 * (tried + 1)));
    const url = new URL(image.src);
    url.searchParams.set("again", tried + 1);
    const answer = await fetch(url, { method: "HEAD" }).catch(() => null);
    if (answer?.status !== 404) image.src = url;
  }, true);

  addEventListener("pagehide", () => { history.scrollRestoration = "auto"; });  // who loads anew, or comes back from elsewhere
  addEventListener("popstate", (event) => {
    if (address() === here) return;
    leave();
    show(location.href, { push: false, seen: left.get(address()) ?? event.state });
  });
  document.documentElement.classList.add("scripted");
  document.querySelector(".help-button").hidden = false;
  arrive(true);
})();
