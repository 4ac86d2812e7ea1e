#include "metrics/run_page_assets.h"

namespace megalith {

const char* const kRunPageStyle = R"css(
:root {
  color-scheme: light; --page: #f4f6f9; --card: #ffffff; --edge: #e1e5ea; --ink: #1b2028; --muted: #667080;
  --grid: #e9ecf0; --axis: #a5adb8; --accent: #1f6feb; --good: #1a7f37; --wait: #9a6700; --bad: #cf222e;
  --c0: #1f6feb; --c1: #d9480f; --c2: #2b8a3e; --c3: #862e9c; --c4: #0b7285; --c5: #a61e4d;
  --shadow: 0 1px 2px rgba(27, 32, 40, .05), 0 4px 14px rgba(27, 32, 40, .04);
}
@media (prefers-color-scheme: dark) { :root:not([data-theme=light]) {
  color-scheme: dark; --page: #0b0f15; --card: #131922; --edge: #242c38; --ink: #e6ebf2; --muted: #8b96a5;
  --grid: #212935; --axis: #4d5866; --accent: #58a6ff; --good: #3fb950; --wait: #d29922; --bad: #ff7b72;
  --c0: #58a6ff; --c1: #ff922b; --c2: #51cf66; --c3: #da77f2; --c4: #3bc9db; --c5: #f783ac; --shadow: none;
} }
:root[data-theme=dark] {
  color-scheme: dark; --page: #0b0f15; --card: #131922; --edge: #242c38; --ink: #e6ebf2; --muted: #8b96a5;
  --grid: #212935; --axis: #4d5866; --accent: #58a6ff; --good: #3fb950; --wait: #d29922; --bad: #ff7b72;
  --c0: #58a6ff; --c1: #ff922b; --c2: #51cf66; --c3: #da77f2; --c4: #3bc9db; --c5: #f783ac; --shadow: none;
}
* { box-sizing: border-box }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 1240px; margin: 0 auto; padding: 28px 24px 40px }
header { display: flex; flex-wrap: wrap; align-items: center; gap: 6px 14px; margin-bottom: 20px }
h1 { font-size: 24px; line-height: 1.25; margin: 0; letter-spacing: -.01em }
h2 { font-size: 17px; margin: 0 0 10px }
header p { margin: 0; color: var(--muted); flex-basis: 100% }
.chip {
  display: inline-flex; align-items: center; gap: 7px; padding: 2px 11px; border-radius: 99px; font-size: 13px;
  border: 1px solid var(--edge); background: var(--card); color: var(--muted); white-space: nowrap;
}
.chip::before { content: ""; width: 8px; height: 8px; border-radius: 50%; background: var(--muted) }
.chip.running::before { background: var(--good); animation: pulse 1.6s ease-in-out infinite }
.chip.finished::before { background: var(--accent) }
.chip.stopped::before, .chip.silent::before { background: var(--wait); animation: none }
@keyframes pulse { 50% { opacity: .3 } }
@media (prefers-reduced-motion: reduce) { .chip.running::before { animation: none } }
#theme {
  margin-left: auto; font: inherit; font-size: 13px; color: var(--muted); background: var(--card); cursor: pointer;
  border: 1px solid var(--edge); border-radius: 99px; padding: 3px 13px;
}
#theme:hover { color: var(--ink) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: 14px; margin-bottom: 14px }
.card, .chart, .block {
  background: var(--card); border: 1px solid var(--edge); border-radius: 12px; box-shadow: var(--shadow);
}
.card { padding: 13px 15px 12px; min-width: 0 }
.card .name { font-size: 13px; color: var(--muted) }
.card .value {
  font-size: 24px; font-weight: 600; letter-spacing: -.02em; line-height: 1.35; white-space: nowrap;
  font-variant-numeric: tabular-nums;
}
.card .value small { font-size: 13px; font-weight: 400; color: var(--muted); letter-spacing: 0 }
.card .more { font-size: 12.5px; color: var(--muted); min-height: 1.5em }
.bar { height: 5px; border-radius: 3px; background: var(--grid); margin: 8px 0 5px; overflow: hidden }
.bar i { display: block; height: 100%; background: var(--accent); border-radius: 3px }
.bad { color: var(--bad) !important }
.charts { display: grid; grid-template-columns: 1fr 1fr; gap: 14px }
.chart { position: relative; padding: 4px; min-width: 0 }
.chart.wide { grid-column: 1 / -1 }
.plot { position: relative }
.chart svg { display: block; width: 100%; height: auto; touch-action: pan-y }
.plot[hidden] { display: none }
.axes { display: flex; justify-content: flex-end; gap: 6px; padding: 0 16px 10px }
.axes button {
  font: inherit; font-size: 12px; color: var(--muted); background: var(--card); cursor: pointer;
  border: 1px solid var(--edge); border-radius: 99px; padding: 1px 10px;
}
.axes button[aria-pressed=true] { color: var(--accent); border-color: var(--accent) }
@media (max-width: 860px) {
  .charts { grid-template-columns: 1fr } main { padding: 18px 12px }
  .chart.wide { overflow-x: auto } .chart.wide svg { min-width: 760px }
}
.block { margin-top: 14px; padding: 15px 19px; overflow-x: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th { text-align: right; font-weight: 500; font-size: 13px; color: var(--muted); padding: 3px 0 6px 20px }
td { text-align: right; padding: 5px 0 5px 20px; border-top: 1px solid var(--grid) }
th:first-child, td:first-child { text-align: left; padding-left: 0 }
.best { font-weight: 600; color: var(--good) }
summary { cursor: pointer; font-weight: 600 }
pre { margin: 12px 0 0; font: 13px/1.55 ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace; overflow-x: auto }
pre.text { white-space: pre-wrap; overflow-wrap: anywhere }
.pictures { display: flex; flex-wrap: wrap; gap: 14px }
figure.picture { margin: 0; max-width: 256px }
figure.picture img { display: block; max-width: 100% }
h3 { margin: 16px 0 -6px; font-size: 13px; color: var(--muted) }
.thinning { margin: 10px 4px 0; font-size: 13px; color: var(--muted) }
footer { margin-top: 18px; font-size: 13px; color: var(--muted); text-align: center }
.paper { fill: none } .ink { fill: var(--ink) } .muted { fill: var(--muted) }
.grid { stroke: var(--grid) } .axis { stroke: var(--axis) }
.s0 { stroke: var(--c0); fill: var(--c0) } .s1 { stroke: var(--c1); fill: var(--c1) }
.s2 { stroke: var(--c2); fill: var(--c2) } .s3 { stroke: var(--c3); fill: var(--c3) }
.s4 { stroke: var(--c4); fill: var(--c4) } .s5 { stroke: var(--c5); fill: var(--c5) }
svg text { font-size: 12px; font-variant-numeric: tabular-nums } svg .title { font-size: 16px; font-weight: 600 }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round }
.pale { stroke-opacity: .28; stroke-width: 1.2 } .dot { stroke: none }
.cursor { stroke: var(--axis); stroke-dasharray: 3 3; pointer-events: none }
.tip {
  position: absolute; pointer-events: none; background: var(--card); border: 1px solid var(--edge); border-radius: 8px;
  padding: 6px 11px; font-size: 13px; line-height: 1.45; white-space: nowrap; font-variant-numeric: tabular-nums;
  box-shadow: 0 4px 16px rgba(0, 0, 0, .18); z-index: 1;
}
.tip i { display: inline-block; width: 9px; height: 9px; border-radius: 50%; margin-right: 7px }
.tip b { font-weight: 600; margin-left: 10px; float: right }
)css";

const char* const kRunPageScript = R"js(
const points = JSON.parse(document.getElementById('points').textContent);
const show = v => { const a = Math.abs(v);
  return a && (a < 1e-3 || a >= 1e6) ? v.toExponential(3) : +v.toPrecision(5) };

const count = v => {
  const units = ['', ' k', ' M', ' B', ' T'];
  let unit = 0;
  while (v >= 999.5 && unit < 4) { v /= 1000; unit += 1 }
  return +v.toPrecision(3) + units[unit];
};
const keep = {
  get: name => { try { return localStorage.getItem(name) } catch { return null } },
  set: (name, value) => { try { localStorage.setItem(name, value) } catch {} },
};

// The page reloads itself, so what was chosen is remembered.
for (const chart of document.querySelectorAll('.chart')) {
  const buttons = [...chart.querySelectorAll('.axes button')];
  if (!buttons.length) continue;
  const chosen = new Set((keep.get('megalith-axes') || '').split(' ').filter(Boolean));
  const choose = () => {
    const axes = buttons.map(b => b.dataset.axis).filter(a => chosen.has(a)).join(' ');
    for (const plot of chart.querySelectorAll('.plot')) plot.hidden = plot.dataset.axes !== axes;
    for (const b of buttons) b.setAttribute('aria-pressed', chosen.has(b.dataset.axis));
    keep.set('megalith-axes', axes);
  };
  for (const b of buttons) b.addEventListener('click', () => {
    chosen.has(b.dataset.axis) ? chosen.delete(b.dataset.axis) : chosen.add(b.dataset.axis);
    choose();
  });
  choose();
}

for (const chart of document.querySelectorAll('.plot')) {
  const svg = chart.querySelector('svg'), series = points[chart.dataset.points];
  const hasTokens = chart.dataset.axes.includes('tokens'), place = v => hasTokens ? count(v) : v;
  if (!svg.dataset.x || !series) continue;
  const axis = text => {
    const [low, high, from, to, isLog] = text.split(' ').map(Number), warp = isLog ? Math.log10 : v => v;
    return { from, to,
      pixel: v => from + (warp(v) - warp(low)) / (warp(high) - warp(low)) * (to - from),
      value: p => {
        const r = warp(low) + (p - from) / (to - from) * (warp(high) - warp(low)); return isLog ? 10 ** r : r } };
  };
  const x = axis(svg.dataset.x), y = axis(svg.dataset.y);
  const make = (name, attributes) => {
    const element = document.createElementNS('http://www.w3.org/2000/svg', name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    return svg.appendChild(element);
  };
  const cursor = make('line', { class: 'cursor', y1: y.from, y2: y.to, visibility: 'hidden' });
  const dots = series.map((_, i) => make('circle', { class: `s${i % 6} dot`, r: 4, visibility: 'hidden' }));
  const tip = chart.appendChild(Object.assign(document.createElement('div'), { className: 'tip', hidden: true }));
  const hide = () => { tip.hidden = true; for (const e of [cursor, ...dots]) e.setAttribute('visibility', 'hidden') };

  svg.addEventListener('pointerleave', hide);
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const at = (event.clientX - box.left) * scale;
    if (at < x.from - 8 || at > x.to + 8) return hide();
    const wanted = x.value(at);
    const near = series.map(s => {
      let low = 0, high = s.x.length - 1;
      while (low < high) { const middle = (low + high) >> 1; s.x[middle] < wanted ? low = middle + 1 : high = middle }
      return low > 0 && wanted - s.x[low - 1] < s.x[low] - wanted ? low - 1 : low;
    });
    // The step is that of the series with most points; others show where they have one not far from it.
    const main = series.reduce((best, s, i) => s.x.length > series[best].x.length ? i : best, 0);
    const step = series[main].x[near[main]], px = x.pixel(step);
    const rows = [];
    series.forEach((s, i) => {
      const value = s.y[near[i]], there = s.x[near[i]];
      const isShown = value !== null && Math.abs(x.pixel(there) - px) < 24;
      dots[i].setAttribute('visibility', isShown ? 'visible' : 'hidden');
      if (!isShown) return;
      dots[i].setAttribute('cx', x.pixel(there)); dots[i].setAttribute('cy', y.pixel(value));
      const row = document.createElement('div'), mark = document.createElement('i'), bold = document.createElement('b');
      mark.style.background = `var(--c${i % 6})`; bold.textContent = show(value);
      row.append(mark, there === step ? s.name : `${s.name} (${place(there)})`, bold); rows.push(row);
    });
    if (!rows.length) return hide();
    cursor.setAttribute('x1', px); cursor.setAttribute('x2', px); cursor.setAttribute('visibility', 'visible');
    tip.replaceChildren(hasTokens ? `${place(step)} tokens` : `iteration ${step}`, ...rows); tip.hidden = false;
    const left = px / scale + 16;
    tip.style.left = (left + tip.offsetWidth > box.width ? px / scale - tip.offsetWidth - 10 : left) + 'px';
    tip.style.top = Math.max(4, (event.clientY - box.top) - tip.offsetHeight / 2) + 'px';
  });
}

const root = document.documentElement, button = document.getElementById('theme');
const isDark = () => root.dataset.theme ? root.dataset.theme === 'dark'
  : matchMedia('(prefers-color-scheme: dark)').matches;
const label = () => { button.textContent = isDark() ? 'Light' : 'Dark' };
const kept = keep.get('megalith-theme');
if (kept) root.dataset.theme = kept;
button.addEventListener('click', () => {
  root.dataset.theme = isDark() ? 'light' : 'dark';
  keep.set('megalith-theme', root.dataset.theme);
  label();
});
label();

const chip = document.querySelector('.chip.running');
if (chip) {
  const tell = () => {
    const age = Date.now() / 1000 - Number(chip.dataset.written);
    if (age < 120) return;
    chip.textContent = `no news for ${age < 7200 ? Math.round(age / 60) + ' min' : Math.round(age / 3600) + ' h'}`;
    chip.classList.add('silent');
  };
  tell();
  setInterval(tell, 5000);
}
)js";

}  // namespace megalith
