// What scripts add to the pages: live plots, live tables. Without it every page is complete.
// Text of others enters the page only by textContent. Nothing here is evaluated.
"use strict";

const ROWS_MAX = 200;
const REFRESH_MS = 10_000;
const LINES_MAX = 6;
const DASHES = [[], [7, 4], [2, 4], [9, 4, 2, 4], [14, 4], [4, 2]];
const STATES = { ok: "✓", warn: "▲", fail: "✕", plain: "·" };
const SHOWN = new WeakSet();

// -- values, as gateway/http/shown.py shows them --------------------------------------------------

const POWERS = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
const THOUSANDS = ["", "k", "M", "G", "T", "P"];
const DAY_S = 86_400;
const CONTROLS = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff\u{e0000}-\u{e007f}]/gu;

function visible(value) {
  return String(value).replace(CONTROLS, (each) => {
    const code = each.codePointAt(0).toString(16);
    return code.length > 2 ? "\\u" + code.padStart(4, "0") : "\\x" + code.padStart(2, "0");
  });
}

function grouped(value, digits = 0) {
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function scaled(value, base, powers) {
  let power = 0;
  while (Math.abs(value) >= base && power < powers.length - 1) {
    value /= base;
    power += 1;
  }
  const words = Math.abs(value) >= 100 ? grouped(value) : String(Number(value.toPrecision(3)));
  return [words, powers[power]];
}

function withUnit(value, unit) {
  if (value === null || value === undefined) return "–";
  const rest = unit.endsWith("/s") ? "/s" : "";
  if (/^byte/i.test(unit) || unit === "B" || unit === "B/s") {
    const [words, power] = scaled(value, 1024, POWERS);
    return `${words} ${power}B${rest}`;
  }
  if (unit === "ms" && value >= 1000) return withUnit(value / 1000, "s");
  if (unit === "s" && value >= 2 * DAY_S) return `${scaled(value / DAY_S, Infinity, [""])[0]} d`;
  if (unit === "ms" || unit === "s") return `${scaled(value, Infinity, [""])[0]} ${unit}`;
  const [words, power] = scaled(value, 1000, THOUSANDS);
  return `${words} ${power}${rest}`.trimEnd();
}

function utc(atMs) {
  return new Date(atMs).toISOString().slice(0, 19).replace("T", " ") + " UTC";
}

const KINDS = {
  number: (value) => grouped(value, Number.isInteger(value) ? 0 : 2),
  bytes: (value) => {
    const [, power] = scaled(value, 1024, POWERS);
    const left = value / 1024 ** POWERS.indexOf(power);
    return power ? `${grouped(left, 1)} ${power}B` : `${grouped(left)} B`;
  },
  ms: (value) => (value >= 1000 ? `${grouped(value / 1000, 1)} s` : `${grouped(value, Number.isInteger(value) ? 0 : 1)} ms`),
  rate: (value) => `${grouped(value, value >= 100 || value === 0 ? 0 : 1)} /s`,
  time: utc,
};

function words(value, kind) {
  if (Array.isArray(value)) return visible(value.join(", "));
  if (typeof value === "object") return visible(JSON.stringify(value));
  return typeof value === "number" && KINDS[kind] ? KINDS[kind](value) : visible(value);
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function content(value, kind, href, states) {
  if (value === null || value === undefined) {
    const dash = element("span", "unknown");
    const sign = element("span", "", "–");
    sign.setAttribute("aria-hidden", "true");
    dash.append(sign, element("span", "unseen", kind === "text" || kind === "link" ? "none" : "unknown"));
    return dash;
  }
  if (kind === "state") return stateOf(value, states);
  if (typeof href === "string" && href.startsWith("/") && !/^\/[/\\]/.test(href)) {
    const link = element("a", "", words(value, kind));
    link.setAttribute("href", href);
    return link;
  }
  return element("span", "", words(value, kind));
}

function stateOf(value, states) {
  const lower = String(value).toLowerCase().replace(/[ _]/g, "-");
  const kind = Object.hasOwn(states, lower) ? states[lower] : "plain";
  const made = element("span", `state state-${kind}`);
  const sign = element("span", "", `${STATES[kind]} `);
  sign.setAttribute("aria-hidden", "true");
  made.append(sign, visible(value));
  return made;
}

// -- live tables: hx-sse turns each event of the stream into an event of the element --------------

function startLive(live) {
  const table = live.querySelector("table");
  const bar = live.querySelector(".live-bar");
  const [button, status] = [bar.querySelector("button"), bar.querySelector("[role=status]")];
  const columns = [...table.tHead.rows[0].cells].map((cell) => ({ ...cell.dataset }));
  const states = JSON.parse(live.dataset.states);
  const state = { paused: false, waiting: 0, skipped: 0, lost: false, failed: "" };
  bar.hidden = false;

  function say() {
    const parts = [];
    if (state.paused) parts.push(`Paused; ${grouped(state.waiting)} new since then are not shown.`);
    if (state.skipped) parts.push(`${grouped(state.skipped)} skipped: more arrived than a browser can show.`);
    if (state.lost) parts.push("The connection was lost: it is tried again.");
    if (state.failed) parts.push(`Ended: ${visible(state.failed)}`);
    status.textContent = parts.join(" ");
  }

  button.addEventListener("click", () => {
    state.paused = !state.paused;
    state.waiting = 0;
    button.textContent = state.paused ? "Go on" : "Pause";
    say();
  });
  live.addEventListener(live.dataset.event, (event) => {
    if (state.paused) {
      state.waiting += 1;
      say();
      return;
    }
    addRow(table.tBodies[0], columns, JSON.parse(event.detail.data), states);
  });
  live.addEventListener("skipped", (event) => {
    state.skipped += JSON.parse(event.detail.data).count || 0;
    say();
  });
  for (const name of ["failed", "error"]) {
    live.addEventListener(name, (event) => {
      const found = JSON.parse(event.detail.data);
      state.failed = (found.error || found).message;
      say();
    });
  }
  live.addEventListener("htmx:sse:error", () => {
    state.lost = true;
    say();
  });
  live.addEventListener("htmx:sse:after:connection", () => {
    state.lost = false;
    state.failed = "";
    say();
  });
}

function addRow(body, columns, found, states) {
  const row = element("tr", "new");
  columns.forEach(({ key, kind }, index) => {
    const cell = element(index ? "td" : "th", ["number", "bytes", "ms", "rate"].includes(kind) ? "number" : "");
    if (!index) cell.setAttribute("scope", "row");
    cell.append(content(found[key], kind, found[`${key}_href`], states));
    row.append(cell);
  });
  body.querySelector("tr.empty")?.remove();
  body.prepend(row);
  while (body.rows.length > ROWS_MAX) body.lastElementChild.remove();
}

// -- plots ----------------------------------------------------------------------------------------

let loading = null;

function uplot() {
  loading ||= new Promise((resolve, reject) => {
    const sheet = element("link");
    sheet.rel = "stylesheet";
    sheet.href = "/static/uplot.min.css";
    const script = element("script");
    script.src = "/static/uplot.min.js";
    script.addEventListener("load", () => resolve(window.uPlot));
    script.addEventListener("error", reject);
    document.head.append(sheet, script);
  });
  return loading;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function columnsOf(history) {
  const given = history.lines.slice(0, LINES_MAX);
  const count = Math.max(0, ...given.map((line) => line.points.length));
  const times = Array.from({ length: count }, (_, index) => history.from_ms / 1000 + index * history.step_s);
  return { given, data: [times, ...given.map((line) => Array.from(times, (_, index) => line.points[index] ?? null))] };
}

function options(history, given, width) {
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { stroke: colour("--edge"), width: 1 } };
  const bytes = /^byte/i.test(history.unit) || history.unit.startsWith("B");
  const incrs = bytes ? Array.from({ length: 50 }, (_, power) => 2 ** power) : undefined;
  return {
    width,
    height: 220,
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
    cursor: { y: false, drag: { x: false, y: false } },
    scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
    series: [
      { label: "Time (UTC)", value: (_, seconds) => (seconds === null ? "–" : utc(seconds * 1000)) },
      ...given.map((line, index) => ({
        label: visible(line.name),
        stroke: colour(`--line-${index}`),
        width: 1.75,
        dash: DASHES[index],
        spanGaps: false,
        points: { size: 4 },
        value: (_, value) => withUnit(value, history.unit),
      })),
    ],
    axes: [
      { ...axis, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toISOString().slice(11, 16)) },
      { ...axis, size: 84, ...(incrs && { incrs }), values: (_, ticks) => ticks.map((tick) => withUnit(tick, history.unit)) },
    ],
  };
}

async function startPlot(figure) {
  const canvas = figure.querySelector(".canvas");
  if (!canvas) return;
  if (!document.querySelector("button.updates")) addPause(figure);
  const title = figure.querySelector("figcaption").textContent.trim();
  let chart = null;
  let drawn = "";

  async function draw(again) {
    const answer = await fetch(figure.dataset.history, { headers: { Accept: "application/json" } });
    if (!answer.ok || !figure.isConnected) return;
    const history = await answer.json();
    const { given, data } = columnsOf(history);
    if (!data[0].length) return;
    const shape = given.map((line) => line.name).join("\n");
    const last = given.map((line, index) => `${line.name}: ${withUnit(data[index + 1].at(-1), history.unit)}`);
    if (chart && shape === drawn && !again) {
      chart.setData(data);
    } else {
      const Chart = await uplot();
      chart?.destroy();
      const holder = element("div");
      holder.setAttribute("role", "img");
      canvas.replaceChildren(holder);
      chart = new Chart(options(history, given, canvas.clientWidth), data, holder);
      drawn = shape;
      figure.querySelector(".legend")?.remove();
    }
    canvas.firstElementChild.setAttribute("aria-label", `${title}. Now ${visible(last.join("; "))}`);
  }

  const quietly = (again) => draw(again).catch(() => {});
  await quietly(false);
  const timer = setInterval(() => {
    if (!figure.isConnected) clearInterval(timer);
    else if (!document.hidden && !paused()) quietly(false);
  }, REFRESH_MS);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => quietly(true));
  new ResizeObserver(() => chart?.setSize({ width: canvas.clientWidth, height: 220 })).observe(canvas);
}

function paused() {
  return document.querySelector("button.updates")?.getAttribute("aria-pressed") === "true";
}

// What moves by itself can be stopped (WCAG 2.2.2): one button for all plots of the page.
function addPause(figure) {
  const button = element("button", "updates", "Pause updates");
  button.type = "button";
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => button.setAttribute("aria-pressed", String(!paused())));
  (figure.closest(".plots") || figure).before(button);
}

// -- start ----------------------------------------------------------------------------------------

function start() {
  const found = document.querySelectorAll(".live[data-stream], .plot[data-history]");
  for (const each of found) {
    if (SHOWN.has(each)) continue;
    SHOWN.add(each);
    if (each.matches(".live")) startLive(each);
    else startPlot(each);
  }
}

start();
document.addEventListener("htmx:after:swap", start);
