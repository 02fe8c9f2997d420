(() => {
  "use strict";
  const root = document.documentElement;
  const themes = ["auto", "light", "dark"];
  const remembered = () => { try { return localStorage.getItem("frontrank-theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("frontrank-theme", theme); } catch { /* for this visit only */ } };
  const setTheme = (theme) => {
    if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme;
    const name = document.querySelector(".theme b");
    if (name) name.textContent = theme;
  };
  let theme = themes.includes(remembered()) ? remembered() : "auto";
  setTheme(theme);  // before anything is drawn

  function themeSwitch() {
    const button = document.querySelector(".theme");
    button.hidden = false;
    setTheme(theme);
    button.addEventListener("click", () => {
      theme = themes[(themes.indexOf(theme) + 1) % themes.length];
      setTheme(theme);
      remember(theme);
    });
  }

  function currentSection() {
    const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
    const sections = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
    const mark = () => {
      let current = null;
      for (const section of sections) if (section.getBoundingClientRect().top < innerHeight * 0.35) current = section;
      if (sections.length && innerHeight + scrollY >= document.body.scrollHeight - 4) current = sections.at(-1);
      for (const [id, link] of links) {
        if (current && id === current.id) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
      }
    };
    addEventListener("scroll", mark, { passive: true });
    mark();
  }

  function copying() {
    for (const button of document.querySelectorAll(".copy")) {
      button.hidden = false;
      button.addEventListener("click", async () => {
        const code = button.parentElement.querySelector("code");
        try {
          await navigator.clipboard.writeText(code.textContent);
          button.textContent = "Copied";
        } catch {
          getSelection().selectAllChildren(code);
          button.textContent = "Selected";
        }
        setTimeout(() => { button.textContent = "Copy"; }, 2000);
      });
    }
  }

  const valueOf = (cell) => {
    const text = cell.dataset.value ?? cell.textContent.trim();
    if (["", "-", "nan"].includes(text)) return null;
    const value = Number(text.replaceAll(",", "").replace("−", "-"));
    return Number.isNaN(value) ? text : value;
  };
  const inOrder = (a, b) => typeof a === "number" && typeof b === "number" ? a - b
    : typeof a === typeof b ? a.localeCompare(b) : typeof a === "number" ? -1 : 1;
  function sorting() {
    for (const head of document.querySelectorAll("table.sortable thead th:not([data-still])")) {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        for (const other of head.parentElement.children) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const body = head.closest("table").tBodies[0];
        const rows = [...body.rows].map((row) => [valueOf(row.cells[head.cellIndex]), row]);
        rows.sort(([a], [b]) => a === null || b === null ? (a === null) - (b === null) : down ? inOrder(b, a) : inOrder(a, b));
        body.append(...rows.map((pair) => pair[1]));
      });
    }
  }

  const drawn = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };
  function maps() {
    const source = document.getElementById("map-points");
    if (!source) return;
    const points = JSON.parse(source.textContent);
    const card = document.querySelector(".maps"), tip = card.querySelector(".tip"), all = [...card.querySelectorAll(".map")];
    for (const hint of document.querySelectorAll(".needs-script")) hint.hidden = false;
    let shown = -1;
    const clear = () => {
      shown = -1;
      tip.hidden = true;
      for (const map of all) map.querySelector(".found").replaceChildren();
    };
    const show = (nearest, map, event) => {
      if (nearest !== shown) {
        shown = nearest;
        const mates = points.codes.flatMap((code, i) => code === points.codes[nearest] ? [i] : []);
        all.forEach((one, side) => {
          const [x, y] = points.sides[side][nearest];
          const lines = mates.map((i) => drawn("path", { d: `M${x} ${y}L${points.sides[side][i].join(" ")}` }));
          const rings = mates.map((i) => drawn("circle", { cx: points.sides[side][i][0], cy: points.sides[side][i][1], r: i === nearest ? 9 : 6 }));
          one.querySelector(".found").replaceChildren(...lines, ...rings);
        });
        const picture = document.getElementById("p" + points.rows[nearest]);
        tip.querySelector("svg").style.display = picture ? "" : "none";
        tip.querySelector("use").setAttribute("href", picture ? "#" + picture.id : "");
        tip.querySelector("span").textContent = points.names[nearest].slice(0, 80);
      }
      tip.hidden = false;
      const frame = card.getBoundingClientRect();
      const x = event.clientX - frame.left, y = event.clientY - frame.top;
      tip.style.left = Math.max(4, Math.min(x + 16, frame.width - tip.offsetWidth - 4)) + "px";
      tip.style.top = (y + 24 + tip.offsetHeight > frame.height ? y - tip.offsetHeight - 16 : y + 18) + "px";
    };
    for (const map of all) {
      const places = points.sides[Number(map.dataset.side)];
      const look = (event) => {
        const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(map.getScreenCTM().inverse());
        let nearest = -1, least = 18 * 18;
        places.forEach(([x, y], i) => {
          const far = (x - at.x) ** 2 + (y - at.y) ** 2;
          if (far < least) [least, nearest] = [far, i];
        });
        if (nearest < 0) clear(); else show(nearest, map, event);
      };
      map.addEventListener("pointermove", look);
      map.addEventListener("pointerdown", look);
      map.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") clear(); });
    }
  }

  addEventListener("beforeprint", () => { for (const one of document.querySelectorAll("details.more")) one.open = true; });
  addEventListener("DOMContentLoaded", () => { themeSwitch(); currentSection(); copying(); sorting(); maps(); });
})();
