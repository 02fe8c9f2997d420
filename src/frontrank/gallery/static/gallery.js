(() => {
  "use strict";
  const main = document.getElementById("main");
  const live = document.getElementById("live");
  const trouble = document.getElementById("trouble");
  const help = document.getElementById("help");
  let asking = null;
  let polling = 0;

  const say = (text) => { live.textContent = ""; requestAnimationFrame(() => { live.textContent = text; }); };
  const complain = (text) => { trouble.textContent = text; trouble.hidden = !text; };

  // the server draws every page; here its main part is put in place of the one before
  async function show(url, { push = true, body = null, quiet = false } = {}) {
    asking?.abort();
    const mine = asking = new AbortController();
    clearTimeout(polling);
    if (!quiet) { complain(""); main.classList.add("waiting"); main.setAttribute("aria-busy", "true"); }
    try {
      const options = { signal: mine.signal, headers: { Accept: "text/html" }, credentials: "same-origin" };
      const response = await fetch(url, body ? { ...options, method: "POST", body } : options);
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const fresh = page.getElementById("main");
      if (mine.signal.aborted) return;
      if (!fresh) throw new Error("no page");
      if (body && !response.ok) { complain(page.querySelector(".lead")?.textContent ?? "That did not work."); return; }
      const back = whereabouts();
      main.replaceChildren(...document.importNode(fresh, true).childNodes);
      document.title = page.title;
      const own = main.querySelector("[data-url]")?.dataset.url;  // the shortest that says the same
      if (push) history.pushState(null, "", own ?? (body ? response.url : url));
      arrive(quiet);
      back(quiet);
    } catch (error) {
      if (error.name !== "AbortError") complain("The server did not answer. Is it still running? Then try again.");
    } finally {
      if (asking === mine) { main.classList.remove("waiting"); main.removeAttribute("aria-busy"); }
    }
  }

  // a page that is replaced keeps its reader where they were: in the same field, or else at its heading
  function whereabouts() {
    const at = document.activeElement;
    const alike = (one) => one.name ? `[name="${CSS.escape(one.name)}"]` : `a[href="${CSS.escape(one.getAttribute("href") ?? "")}"]`;
    if (!at || !main.contains(at) || !(at.form?.matches("[data-live]") || at.matches("a"))) return (quiet) => quiet || main.querySelector("h1")?.focus({ preventScroll: true });
    const wanted = alike(at), place = [...main.querySelectorAll(wanted)].indexOf(at);
    return (quiet) => {
      const same = at.form || quiet ? main.querySelectorAll(wanted)[place] : null;
      (same ?? main.querySelector("h1"))?.focus({ preventScroll: true });
    };
  }

  function arrive(quiet = false) {
    for (const one of main.querySelectorAll(".needs-script, .share, .copy")) one.hidden = false;
    if (matchMedia("(max-width: 820px)").matches) main.querySelector(".controls")?.removeAttribute("open");
    if (main.querySelector("[data-poll]")) polling = setTimeout(() => show(location.href, { push: false, quiet: true }), 1500);
    if (quiet) return;
    const said = main.querySelector("[data-said]") ?? main.querySelector("h1");
    const measures = [...main.querySelectorAll(".measure")].map((one) => one.textContent.trim());
    say([said?.textContent.trim(), ...measures].filter(Boolean).join(". "));
  }

  function send(file) {
    const form = main.querySelector("form.drop");
    if (!form || !file) return;
    if (file.size > Number(form.dataset.most)) {
      complain(`This file is too large: at most ${Math.floor(form.dataset.most / 1e6)} MB can be sent.`);
      return;
    }
    const body = new FormData();
    body.append("state", form.elements.state.value);
    body.append("image", file, "image");  // the name of the file is nobody's business
    say("Searching");
    show(form.action, { body });
  }

  const plainClick = (event) => event.button === 0 && !(event.metaKey || event.ctrlKey || event.shiftKey || event.altKey);
  document.addEventListener("click", async (event) => {
    const link = event.target.closest("a[data-swap]");
    if (link && plainClick(event)) {
      event.preventDefault();
      await show(link.href);
      scrollTo({ top: 0 });
    } else if (event.target.closest(".help-button")) {
      help.showModal();
    } else if (event.target.closest(".share")) {
      const button = event.target.closest(".share");
      try { await navigator.clipboard.writeText(location.href); button.textContent = "Copied"; } catch { button.textContent = "It is in the address bar"; }
      setTimeout(() => { button.textContent = "Copy link"; }, 2000);
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
    if (event.target.matches("form.drop input[type=file]")) send(event.target.files[0]);
    else if (event.target.matches("form[data-live] select, form[data-live] input")) event.target.form.requestSubmit();
  });

  // drop and paste, anywhere on the page
  const holdsFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  document.addEventListener("dragover", (event) => {
    if (holdsFile(event)) { event.preventDefault(); document.body.classList.add("dropping"); }
  });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("dropping"); });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("dropping");
    if (holdsFile(event)) { event.preventDefault(); send(event.dataTransfer.files[0]); }
  });
  document.addEventListener("paste", (event) => {
    const file = [...(event.clipboardData?.files ?? [])].find((one) => one.type.startsWith("image/"));
    if (file) { event.preventDefault(); send(file); }
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
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || help.open) return;
    if (event.target.closest("input, select, textarea")) { if (event.key === "Escape") event.target.blur(); return; }
    if (event.key.startsWith("Arrow")) {
      const here = document.activeElement?.closest?.(".hits.grid a");
      const next = here ? neighbour(here, event.key) : event.key === "ArrowRight" ? main.querySelector(".hits.grid a") : null;
      if (next) { event.preventDefault(); next.focus(); next.scrollIntoView({ block: "nearest" }); }
      return;
    }
    const keys = {
      "/": () => { const box = document.getElementById("filter"); box?.closest("details")?.setAttribute("open", ""); box?.focus(); },
      "?": () => help.showModal(),
      u: () => main.querySelector("form.drop input[type=file]")?.click(),
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });

  // a busy server refuses some pictures: ask again for those, a few times
  document.addEventListener("error", (event) => {
    const image = event.target;
    if (!(image instanceof HTMLImageElement)) return;
    const tried = Number(image.dataset.tried ?? 0);
    if (tried >= 3) return;
    image.dataset.tried = tried + 1;
    const url = new URL(image.src);
    url.searchParams.set("again", tried + 1);
    setTimeout(() => { image.src = url; }, 1500 * (tried + 1));
  }, true);

  addEventListener("popstate", () => show(location.href, { push: false }));
  document.documentElement.classList.add("scripted");
  document.querySelector(".help-button").hidden = false;
  arrive(true);
})();
