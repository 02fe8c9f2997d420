"use strict";
(() => {
  const given = JSON.parse(document.getElementById("toy").textContent);
  const numbers = (text) => Float64Array.from(text.split(" "), Number);
  const LAST = given.last; // negatives in a batch: R is never more
  const one = (id) => document.getElementById(id);

  // ---- f'(R) as text: the grammar and the messages of studies/pnp_designer.py

  const ONE = { exp: Math.exp, log: Math.log, sqrt: Math.sqrt };
  const TWO = { min: Math.min, max: Math.max };
  const LONGEST = 2000, DEEPEST = 50;

  class Wrong extends Error {
    constructor(at, what) { super(`position ${at}: ${what}`); }
  }

  function tokens(text) {
    const letters = [...text], list = [];
    if (letters.length > LONGEST) throw new Wrong(LONGEST, `it is longer than ${LONGEST} characters`);
    const token = /[ \t\n\r\f\v]*(?:((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|([A-Za-z_]+)|([^]))/uy;
    const whole = text.replace(/[ \t\n\r\f\v]+$/, "");
    const place = (at) => [...text.slice(0, at)].length + 1;
    while (token.lastIndex < whole.length) {
      const match = token.exec(whole);
      const kind = match[1] !== undefined ? "number" : match[2] !== undefined ? "name" : "sign";
      const word = match[1] ?? match[2] ?? match[3];
      list.push({ kind, word, at: place(token.lastIndex - word.length) });
    }
    list.push({ kind: "end", word: "", at: place(whole.length) });
    return list;
  }

  function parse(text) {
    const list = tokens(text);
    let next = 0, depth = 0;
    const takes = (...words) => {
      const { kind, word } = list[next];
      if (kind !== "sign" || !words.includes(word)) return "";
      next += 1;
      return word;
    };
    const close = (opened) => {
      const { kind, word, at } = list[next];
      if (takes(")")) return;
      if (kind === "end") throw new Wrong(opened, "this ( is never closed");
      throw new Wrong(at, `an operator must come here, not "${word}"`);
    };
    const sum = () => {
      let result = product();
      for (let sign = takes("+", "-"); sign; sign = takes("+", "-")) {
        const left = result, right = product();
        result = sign === "+" ? (r) => left(r) + right(r) : (r) => left(r) - right(r);
      }
      return result;
    };
    const product = () => {
      let result = signed();
      for (let sign = takes("*", "/"); sign; sign = takes("*", "/")) {
        const left = result, right = signed();
        result = sign === "*" ? (r) => left(r) * right(r) : (r) => left(r) / right(r);
      }
      return result;
    };
    const signed = () => {
      depth += 1;
      if (depth > DEEPEST) throw new Wrong(list[next].at, `more than ${DEEPEST} things are inside each other here`);
      let result;
      const sign = takes("+", "-");
      if (sign) {
        const inner = signed();
        result = sign === "-" ? (r) => -inner(r) : inner;
      } else {
        result = atom();
        if (takes("^")) {
          const base = result, power = signed();
          // 1 to any power is 1 in torch; here 1 ** NaN and 1 ** Infinity are NaN
          result = (r) => { const low = base(r); return low === 1 ? 1 : low ** power(r); };
        }
      }
      depth -= 1;
      return result;
    };
    const atom = () => {
      const { kind, word, at } = list[next];
      if (kind !== "end") next += 1;
      if (kind === "number") { const value = Number(word); return () => value; }
      if (kind === "name") return named(word, at);
      if (word === "(") { const result = sum(); close(at); return result; }
      throw new Wrong(at, `a number, R, a function or ( must come here, ${word ? `not "${word}"` : "but the expression ends"}`);
    };
    const named = (word, at) => {
      if (word === "R") return (r) => r;
      if (!Object.hasOwn(ONE, word) && !Object.hasOwn(TWO, word))
        throw new Wrong(at, `there is no "${word}"; there are R, ${[...Object.keys(ONE), ...Object.keys(TWO)].join(", ")}`);
      const opened = list[next].at;
      if (!takes("(")) throw new Wrong(opened, `${word} needs ( ) around its argument`);
      const inner = [sum()];
      while (takes(",")) inner.push(sum());
      close(opened);
      const needed = Object.hasOwn(ONE, word) ? 1 : 2;
      if (inner.length !== needed)
        throw new Wrong(at, `${word} takes ${needed} argument${needed > 1 ? "s" : ""}, not ${inner.length}`);
      const [a, b] = inner;
      return needed === 1 ? (r) => ONE[word](a(r)) : (r) => TWO[word](a(r), b(r));
    };
    const result = sum(), { kind, word, at } = list[next];
    if (kind !== "end") throw new Wrong(at, word === ")" ? "this ) closes nothing" : `an operator must come here, not "${word}"`);
    return result;
  }

  /** The function of a text, after a look at it: finite and not negative wherever R can be. */
  function derivative(text) {
    const slope = parse(text);
    for (const r of [0, ...Array.from({ length: 61 }, (_, i) => 10 ** (-6 + i / 5))]) {
      const value = slope(r);
      if (!(value >= 0 && value < Infinity))
        throw new Error(`f'(R) must be finite and at least 0 for every R ≥ 0, but f'(${short(r)}) = ${short(value)}`);
    }
    return slope;
  }

  /** f, the integral of f' from 0: a table, made by Simpson's rule on ever smaller parts, and cubics between its points. */
  function integral(slope) {
    const many = 400, edges = Array.from({ length: many + 1 }, (_, i) => Math.expm1(Math.log1p(LAST) * i / many));
    const part = (low, high, a, m, b, deep) => {
      const middle = (low + high) / 2, c = slope((low + middle) / 2), d = slope((middle + high) / 2);
      const whole = (high - low) / 6 * (a + 4 * m + b), halves = (high - low) / 12 * (a + 4 * c + 2 * m + 4 * d + b);
      if (deep === 0 || Math.abs(whole - halves) <= 1e-12 * Math.max(1, halves)) return halves;
      return part(low, middle, a, c, m, deep - 1) + part(middle, high, m, d, b, deep - 1);
    };
    const slopes = edges.map(slope), sums = [0];
    for (let i = 0; i < many; i += 1) {
      const middle = slope((edges[i] + edges[i + 1]) / 2);
      sums.push(sums[i] + part(edges[i], edges[i + 1], slopes[i], middle, slopes[i + 1], 24));
    }
    return (r) => {
      const i = Math.min(many - 1, Math.floor(Math.log1p(r) / Math.log1p(LAST) * many));
      const width = edges[i + 1] - edges[i], t = (r - edges[i]) / width;
      const [h00, h10, h01] = [(1 + 2 * t) * (1 - t) ** 2, t * (1 - t) ** 2, t * t * (3 - 2 * t)];
      return h00 * sums[i] + h10 * width * slopes[i] + h01 * sums[i + 1] + t * t * (t - 1) * width * slopes[i + 1];
    };
  }

  function short(value) {
    if (!Number.isFinite(value)) return String(value);
    if (value === 0) return "0";
    return Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
  }

  // ---- the toy of studies/pnp_circle.py: its network, its batches, the loss and Adam

  const SHAPES = [[given.neurons, 2], [given.neurons, given.neurons], [2, given.neurons]];

  class Training {
    constructor(layout, text) {
      const own = given.layouts[layout];
      this.slope = derivative(text);
      this.value = integral(this.slope);
      this.points = { train: numbers(own.train), test: numbers(own.test) };
      const all = numbers(own.weights);
      this.weights = [];
      let at = 0;
      for (const [out, inside] of SHAPES) {
        this.weights.push(all.slice(at, at + out * inside), all.slice(at + out * inside, at + out * inside + out));
        at += out * inside + out;
      }
      this.first = this.weights.map((w) => new Float64Array(w.length));
      this.second = this.weights.map((w) => new Float64Array(w.length));
      this.step = 0;
      this.loss = NaN;
    }

    /** All layers of a network on points [n, 2]; the last one is on the circle. */
    forward(x) {
      const n = x.length / 2, layers = [x];
      SHAPES.forEach(([out, inside], k) => {
        const from = layers[k], to = new Float64Array(n * out), w = this.weights[2 * k], bias = this.weights[2 * k + 1];
        for (let i = 0; i < n; i += 1)
          for (let o = 0; o < out; o += 1) {
            let total = bias[o];
            for (let j = 0; j < inside; j += 1) total += from[i * inside + j] * w[o * inside + j];
            to[i * out + o] = k < 2 && total < 0 ? 0 : total;
          }
        layers.push(to);
      });
      const last = layers[3], lengths = new Float64Array(n), embedded = new Float64Array(2 * n);
      for (let i = 0; i < n; i += 1) {
        lengths[i] = Math.max(Math.hypot(last[2 * i], last[2 * i + 1]), 1e-12);
        embedded[2 * i] = last[2 * i] / lengths[i];
        embedded[2 * i + 1] = last[2 * i + 1] / lengths[i];
      }
      return { layers, lengths, embedded };
    }

    /** The loss of embeddings, and its slopes in them; classes stand side by side. */
    ranking(e) {
      const n = e.length / 2, each = given.perClass, slopes = new Float64Array(2 * n), inScores = new Float64Array(n);
      const scores = new Float64Array(n), share = 1 / (n * (each - 1)), nearby = new Float64Array(n);
      let total = 0;
      for (let q = 0; q < n; q += 1) {
        const start = q - q % each, end = start + each;
        for (let j = 0; j < n; j += 1) scores[j] = e[2 * q] * e[2 * j] + e[2 * q + 1] * e[2 * j + 1];
        inScores.fill(0);
        for (let i = start; i < end; i += 1) {
          if (i === q) continue;
          let before = 0, pull = 0;
          for (let j = 0; j < n; j += 1) {
            if (j === start) j = end;
            if (j >= n) break;
            const g = 1 / (1 + Math.exp((scores[i] - scores[j]) / given.temperature));
            before += g;
            nearby[j] = g * (1 - g) / given.temperature;
          }
          total += share * this.value(before);
          const strength = share * this.slope(before);
          for (let j = 0; j < n; j += 1) {
            if (j === start) j = end;
            if (j >= n) break;
            inScores[j] += strength * nearby[j];
            pull += nearby[j];
          }
          inScores[i] -= strength * pull;
        }
        for (let j = 0; j < n; j += 1)
          for (const d of [0, 1]) {
            slopes[2 * q + d] += inScores[j] * e[2 * j + d];
            slopes[2 * j + d] += inScores[j] * e[2 * q + d];
          }
      }
      return { loss: total, slopes };
    }

    batch() {
      const { classes, points, perClass, strides } = given, x = new Float64Array(2 * classes * perClass);
      for (let c = 0; c < classes; c += 1)
        for (let k = 0; k < perClass; k += 1) {
          const row = c * points + (this.step * strides[c] + k) % points, to = 2 * (c * perClass + k);
          x[to] = this.points.train[2 * row];
          x[to + 1] = this.points.train[2 * row + 1];
        }
      return x;
    }

    advance() {
      const { layers, lengths, embedded } = this.forward(this.batch());
      const { loss, slopes } = this.ranking(embedded), n = lengths.length;
      this.loss = loss;
      let back = new Float64Array(2 * n);
      for (let i = 0; i < n; i += 1) { // through the division by the length
        const [x, y, a, b] = [embedded[2 * i], embedded[2 * i + 1], slopes[2 * i], slopes[2 * i + 1]];
        const along = a * x + b * y;
        back[2 * i] = (a - along * x) / lengths[i];
        back[2 * i + 1] = (b - along * y) / lengths[i];
      }
      this.step += 1;
      const steps = [];
      for (let k = 2; k >= 0; k -= 1) {
        const [out, inside] = SHAPES[k], from = layers[k], w = this.weights[2 * k];
        const ofWeights = new Float64Array(w.length), ofBias = new Float64Array(out), below = new Float64Array(n * inside);
        for (let i = 0; i < n; i += 1)
          for (let o = 0; o < out; o += 1) {
            const slope = back[i * out + o];
            if (slope === 0) continue;
            ofBias[o] += slope;
            for (let j = 0; j < inside; j += 1) {
              ofWeights[o * inside + j] += slope * from[i * inside + j];
              below[i * inside + j] += slope * w[o * inside + j];
            }
          }
        if (k > 0) for (let i = 0; i < below.length; i += 1) if (from[i] <= 0) below[i] = 0;
        steps.push([2 * k, ofWeights], [2 * k + 1, ofBias]);
        back = below;
      }
      for (const [place, slope] of steps) this.adam(place, slope);
    }

    adam(place, slope) {
      const w = this.weights[place], m = this.first[place], v = this.second[place];
      const [one, two] = [1 - 0.9 ** this.step, 1 - 0.999 ** this.step];
      for (let i = 0; i < w.length; i += 1) {
        m[i] = 0.9 * m[i] + 0.1 * slope[i];
        v[i] = 0.999 * v[i] + 0.001 * slope[i] * slope[i];
        w[i] -= given.rate / one * m[i] / (Math.sqrt(v[i] / two) + 1e-8);
      }
    }

    /** R@1 and mAP of the test classes: every point searches all others, and of equals a wrong one comes first. */
    evaluate() {
      const e = this.forward(this.points.test).embedded, n = e.length / 2, each = given.points;
      const right = new Float64Array(each - 1), wrong = new Float64Array(n - each);
      let first = 0, mean = 0;
      for (let q = 0; q < n; q += 1) {
        const start = q - q % each;
        let rights = 0, wrongs = 0;
        for (let j = 0; j < n; j += 1) {
          if (j === q) continue;
          const score = e[2 * q] * e[2 * j] + e[2 * q + 1] * e[2 * j + 1];
          if (j >= start && j < start + each) right[rights++] = score;
          else wrong[wrongs++] = score;
        }
        right.sort();
        wrong.sort();
        let before = 0, precision = 0;
        for (let k = 0; k < rights; k += 1) { // from the nearest on
          while (before < wrongs && wrong[wrongs - 1 - before] >= right[rights - 1 - k]) before += 1;
          precision += (k + 1) / (k + 1 + before);
          if (k + before === 0) first += 1;
        }
        mean += precision / rights;
      }
      return { "R@1": first / n, mAP: mean / n };
    }
  }

  // ---- the drawing of f'

  const NS = "http://www.w3.org/2000/svg";
  const KNOTS = given.knots, GRID = given.grid, TICKS = [0, 1, 2, 4, 8, 16, 32, LAST];
  const HIGH = 240, EDGE = { left: 46, right: 14, top: 12, bottom: 40 };
  let curves = null, top = 1, knots = [], focused = 0, pen = null;

  /** What is drawn of an expression. Python has computed the same for the one that the page begins with. */
  function curvesOf(slope) {
    return { slope: GRID.map(slope), loss: GRID.map(integral(slope)), knots: KNOTS.map(slope), pulls: given.pulls.map(slope) };
  }

  function element(parent, name, attributes, text) {
    const made = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }

  function scales(svg, highest) {
    const wide = Math.max(240, svg.clientWidth), inside = wide - EDGE.left - EDGE.right, low = HIGH - EDGE.bottom;
    return {
      wide,
      x: (r) => EDGE.left + Math.log1p(r) / Math.log1p(LAST) * inside,
      y: (value) => low - Math.min(value, 1.5 * highest) / highest * (low - EDGE.top),
      r: (x) => Math.expm1(Math.min(1, Math.max(0, (x - EDGE.left) / inside)) * Math.log1p(LAST)),
      value: (y) => Math.min(1, Math.max(0, (low - y) / (low - EDGE.top))) * highest,
    };
  }

  /** Draw axes and a curve on GRID in an emptied svg; the horizontal axis is that of log(1 + R). */
  function chart(svg, curve, highest, kind) {
    const at = scales(svg, highest);
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${at.wide} ${HIGH}`);
    for (const r of TICKS) {
      element(svg, "line", { class: "grid", x1: at.x(r), x2: at.x(r), y1: at.y(0), y2: at.y(highest) });
      element(svg, "text", { class: "tick", x: at.x(r), y: HIGH - 23, "text-anchor": "middle" }, r);
    }
    for (const part of [0, 0.5, 1]) {
      element(svg, "line", { class: part ? "grid" : "axis", x1: at.x(0), x2: at.x(LAST), y1: at.y(part * highest), y2: at.y(part * highest) });
      element(svg, "text", { class: "tick", x: EDGE.left - 7, y: at.y(part * highest) + 4, "text-anchor": "end" }, short(part * highest));
    }
    element(svg, "text", { class: "tick", x: at.x(LAST), y: HIGH - 6, "text-anchor": "end" }, "R, negatives before the positive");
    const path = GRID.map((r, i) => `${at.x(r).toFixed(1)},${at.y(curve[i]).toFixed(1)}`).join(" ");
    element(svg, "polyline", { class: `curve ${kind}`, points: path });
    return at;
  }

  /** A number of few digits that leaves some room above a value. */
  function above(value) {
    if (!(value > 0)) return 1;
    const unit = 10 ** Math.floor(Math.log10(value));
    return round([1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10, 12].find((each) => each * unit >= 1.05 * value) * unit);
  }

  function round(value) { return Number(value.toPrecision(4)); }

  /** The points that were drawn as an expression: straight in log(1 + R) between them, level after the last. */
  function expressionOf(values) {
    const places = KNOTS.map((r) => Math.log1p(r)), parts = [String(round(values[0]))];
    let before = 0;
    KNOTS.forEach((r, k) => {
      const rise = k + 1 < KNOTS.length ? (values[k + 1] - values[k]) / (places[k + 1] - places[k]) : 0;
      const bend = Number((rise - before).toPrecision(6));
      before = rise;
      if (Math.abs(bend) < 1e-9) return;
      const away = r === 0 ? "log(1+R)" : `max(0,log((1+R)/${1 + r}))`;
      parts.push(`${bend < 0 ? "-" : "+"}${Math.abs(bend)}*${away}`);
    });
    return `max(0,${parts.join("")})`;
  }

  function draw() {
    const svg = one("draw"), at = chart(svg, curves.slope, top, "slope");
    chart(one("loss"), curves.loss, above(curves.loss.at(-1)), "value");
    KNOTS.forEach((r, k) => {
      const knot = element(svg, "circle", {
        class: "knot", cx: at.x(r), cy: at.y(Math.min(knots[k], top)), r: 6, role: "slider", tabindex: k === focused ? 0 : -1,
        "aria-label": `f'(R) at R = ${r}`, "aria-orientation": "vertical",
        "aria-valuemin": 0, "aria-valuemax": round(top), "aria-valuenow": round(knots[k]),
      });
      knot.addEventListener("keydown", (event) => moveByKey(event, k));
      knot.addEventListener("focus", () => { focused = k; });
    });
    const most = Math.max(...curves.pulls, 1e-300);
    one("pulls").replaceChildren(...given.pulls.map((r, i) => {
      const row = document.createElement("tr"), value = curves.pulls[i];
      const [head, cell, share] = ["th", "td", "td"].map((name) => document.createElement(name));
      head.scope = "row";
      head.textContent = r;
      cell.textContent = short(value);
      const bar = document.createElement("span"), text = document.createElement("span");
      bar.className = "bar";
      bar.style.width = `${(100 * value / most).toFixed(1)}%`;
      text.textContent = `${Math.round(100 * value / most)} %`;
      const box = document.createElement("div");
      box.append(bar, text);
      share.append(box);
      row.append(head, cell, share);
      return row;
    }));
  }

  function moveByKey(event, k) {
    const step = { ArrowUp: 0.02, ArrowDown: -0.02, PageUp: 0.1, PageDown: -0.1 }[event.key];
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      focused = Math.min(KNOTS.length - 1, Math.max(0, k + (event.key === "ArrowRight" ? 1 : -1)));
    } else if (step !== undefined || event.key === "Home" || event.key === "End") {
      const to = event.key === "Home" ? 0 : event.key === "End" ? top : knots[k] + step * top;
      knots[k] = Math.min(top, Math.max(0, to));
      take(expressionOf(knots), false);
    } else return;
    event.preventDefault();
    draw();
    one("draw").querySelectorAll(".knot")[focused].focus();
  }

  /** Take up an expression that a person typed or drew; return whether it is valid. */
  function take(text, fit) {
    const field = one("expression");
    let ofText;
    if (field.value !== text) field.value = text;
    try {
      ofText = curvesOf(derivative(text));
    } catch (error) {
      one("message").textContent = error.message;
      field.setAttribute("aria-invalid", "true");
      one("go").disabled = true;
      return false;
    }
    field.removeAttribute("aria-invalid");
    one("message").textContent = "";
    one("go").disabled = false;
    show(text, ofText, fit);
    return true;
  }

  /** Show an expression; fit: the scale follows it, and the points that can be moved are put on it. */
  function show(text, ofText, fit) {
    curves = ofText;
    if (fit) {
      knots = [...curves.knots];
      top = above(Math.max(...curves.slope));
    }
    for (const button of document.querySelectorAll("[data-preset]"))
      button.setAttribute("aria-pressed", String(preset(button.dataset.preset) === text));
    one("command").textContent = `python -m studies pnp-designer --derivative "${text}"`;
    again();
  }

  function preset(name) {
    const [alpha, b] = ["alpha", "b"].map((id) => Number(one(id).value));
    return { O: "1", I_u: "1+log(1+R)", I_b: `R/(1+${b}*R)`, D_s: "1/(1+R)", D_q: `${alpha}/(1+R)^${Number((alpha + 1).toFixed(6))}` }[name];
  }

  function pointOf(event) {
    const box = one("draw").getBoundingClientRect(), at = scales(one("draw"), top);
    const ratio = at.wide / box.width, y = (event.clientY - box.top) * HIGH / box.height;
    return { u: Math.log1p(at.r((event.clientX - box.left) * ratio)), value: at.value(y) };
  }

  function stroke(event) {
    const to = pointOf(event), from = pen ?? to, places = KNOTS.map((r) => Math.log1p(r));
    const [low, high] = from.u < to.u ? [from, to] : [to, from];
    places.forEach((u, k) => {
      if (u >= low.u && u <= high.u && high.u > low.u)
        knots[k] = low.value + (high.value - low.value) * (u - low.u) / (high.u - low.u);
    });
    const near = places.reduce((best, u, k) => Math.abs(u - to.u) < Math.abs(places[best] - to.u) ? k : best, 0);
    knots[near] = to.value;
    pen = to;
    take(expressionOf(knots), false);
    draw();
  }

  // ---- the circle

  let training = null, running = 0; // null before the first step

  function paint() {
    const canvas = one("circle"), size = canvas.clientWidth, dots = Math.min(3, devicePixelRatio || 1);
    canvas.width = canvas.height = Math.round(size * dots);
    const brush = canvas.getContext("2d"), colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);
    brush.setTransform(dots * size / 2.3, 0, 0, -dots * size / 2.3, canvas.width / 2, canvas.height / 2);
    brush.lineWidth = 0.006;
    brush.strokeStyle = colour("--line");
    for (const radius of [1, 0.72]) {
      brush.beginPath();
      brush.arc(0, 0, radius, 0, 2 * Math.PI);
      brush.stroke();
    }
    const untrained = given.layouts[one("layout").value].angles;
    for (const [part, radius] of [["train", 1], ["test", 0.72]]) {
      const e = training?.forward(training.points[part]).embedded, angles = numbers(untrained[part === "train" ? 0 : 1]);
      for (let i = 0; i < angles.length; i += 1) {
        const away = radius + ((i % given.points) / given.points - 0.5) * 0.16; // beside each other where angles are equal
        const [x, y] = e ? [away * e[2 * i], away * e[2 * i + 1]] : [away * Math.cos(angles[i]), away * Math.sin(angles[i])];
        brush.fillStyle = brush.strokeStyle = colour(`--class${Math.floor(i / given.points)}`);
        brush.beginPath();
        if (part === "train") {
          brush.arc(x, y, 0.013, 0, 2 * Math.PI);
          brush.fill();
        } else {
          brush.moveTo(x - 0.014, y - 0.014);
          brush.lineTo(x + 0.014, y + 0.014);
          brush.moveTo(x - 0.014, y + 0.014);
          brush.lineTo(x + 0.014, y - 0.014);
          brush.stroke();
        }
      }
    }
  }

  function report() {
    const layout = one("layout").value, percent = (value) => (100 * value).toFixed(1);
    const metrics = training ? training.evaluate() : given.layouts[layout].untrained, step = training?.step ?? 0;
    one("now").textContent = `Step ${step} of ${given.steps}: test R@1 ${percent(metrics["R@1"])}, mAP ${percent(metrics.mAP)}`;
    one("circle").setAttribute("aria-label", `The unit circle after ${step} steps; test mAP ${percent(metrics.mAP)} percent`);
    return metrics;
  }

  function pause() {
    cancelAnimationFrame(running);
    running = 0;
    one("go").textContent = training?.step ? "Go on" : "Train";
  }

  /** From the first weights, with what is chosen now. */
  function again() {
    training = null;
    pause();
    paint();
    report();
    presets();
  }

  function frame() {
    for (let i = 0; i < 2 && training.step < given.steps; i += 1) training.advance();
    paint();
    if (training.step % 20 === 0) report();
    if (training.step < given.steps) {
      running = requestAnimationFrame(frame);
      return;
    }
    running = 0;
    one("go").textContent = "Train again";
    const row = resultRow(one("expression").value, report(), null);
    row.className = "own";
    one("results").prepend(row);
    while (one("results").querySelectorAll(".own").length > 5) [...one("results").querySelectorAll(".own")].at(-1).remove();
  }

  function resultRow(name, metrics, mean) {
    const row = document.createElement("tr"), head = document.createElement("th");
    head.scope = "row";
    head.textContent = name.length > 24 ? `${name.slice(0, 23)}…` : name;
    head.title = name;
    row.append(head);
    for (const value of [metrics["R@1"], metrics.mAP, mean]) {
      const cell = document.createElement("td");
      cell.textContent = value === null ? "–" : (100 * value).toFixed(1);
      row.append(cell);
    }
    return row;
  }

  function presets() {
    const layout = one("layout").value, body = one("results");
    if (body.dataset.layout === layout) return;
    body.dataset.layout = layout;
    body.replaceChildren(...Object.entries(given.layouts[layout].results).map(
      ([name, own]) => resultRow(name === "typed" ? given.expression : name, own.first, own.mean)));
  }

  // ---- what a person does

  for (const button of document.querySelectorAll("[data-preset]"))
    button.addEventListener("click", () => { if (take(preset(button.dataset.preset), true)) draw(); });
  for (const [id, name] of [["alpha", "D_q"], ["b", "I_b"]])
    one(id).addEventListener("input", () => { if (one(id).checkValidity() && take(preset(name), true)) draw(); });
  one("expression").addEventListener("input", (event) => { if (take(event.target.value, true)) draw(); });
  one("layout").addEventListener("change", again);
  one("over").addEventListener("click", again);
  one("go").addEventListener("click", () => {
    if (running) { pause(); return; }
    if (training?.step >= given.steps) again();
    training ??= new Training(one("layout").value, one("expression").value);
    one("go").textContent = "Pause";
    running = requestAnimationFrame(frame);
  });
  one("draw").addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    one("draw").setPointerCapture(event.pointerId);
    pen = null;
    stroke(event);
    event.preventDefault();
  });
  one("draw").addEventListener("pointermove", (event) => { if (one("draw").hasPointerCapture(event.pointerId)) stroke(event); });
  let width = 0;
  new ResizeObserver(() => {
    if (one("draw").clientWidth === width) return;
    width = one("draw").clientWidth;
    draw();
    paint();
  }).observe(one("draw"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);

  one("expression").value = given.expression;
  show(given.expression, given.curves, true);
  draw();

  // the same without the page, for a console
  globalThis.designer = {
    values(text, rs) {
      const slope = derivative(text), value = integral(slope);
      return { slopes: rs.map(slope), values: rs.map(value) };
    },
    train(text, layout, steps) {
      const run = new Training(layout, text), losses = [];
      for (let i = 0; i < steps; i += 1) { run.advance(); losses.push(run.loss); }
      return { losses, weights: run.weights.map((w) => [...w]), ...run.evaluate() };
    },
    message(text) { try { derivative(text); return ""; } catch (error) { return error.message; } },
  };
})();
