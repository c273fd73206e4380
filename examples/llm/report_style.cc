#include "llm/report_style.h"

namespace llm {

const char kReportStyle[] = R"css(
:root { color-scheme: light dark; --ink: #1d2129; --soft: #626b7a; --faint: #e3e6eb; --paper: #fbfbfa;
  --card: #ffffff; --c1: #2458c5; --c2: #c2570c; --c3: #7a8190; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ec; --soft: #99a2b1; --faint: #313642;
  --paper: #16181d; --card: #1d2027; --c1: #7fa7ff; --c2: #f0984c; --c3: #8b93a3; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--paper);
  color: var(--ink); font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 1rem; margin: 0; }
.subtitle { color: var(--soft); margin: 0.3rem 0 1.6rem; }
.headlines { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: 0.8rem;
  margin-bottom: 1.2rem; }
.card, figure { background: var(--card); border: 1px solid var(--faint); border-radius: 8px; }
.headlines .card { padding: 0.8rem 1rem; }
.card .label, .card .note { color: var(--soft); font-size: 0.82rem; display: block; }
.card .value { font-size: 1.45rem; font-weight: 650; white-space: nowrap; font-variant-numeric: tabular-nums;
  letter-spacing: -0.02em; }
figure { margin: 0; padding: 0.9rem 1rem 0.5rem; min-width: 0; }
body > figure + figure { margin-top: 0.8rem; }
figcaption { display: flex; flex-wrap: wrap; gap: 0 0.6rem; align-items: baseline; margin-bottom: 0.3rem; }
.unit { color: var(--soft); font-size: 0.82rem; }
.legend { margin-left: auto; font-size: 0.82rem; }
.key { margin-left: 1rem; white-space: nowrap; }
.key::before { content: ""; display: inline-block; width: 1.3rem; vertical-align: middle; margin-right: 0.4rem;
  border-top: 2.5px solid currentColor; }
.key.dashed::before { border-top-style: dashed; }
.plots { display: grid; grid-template-columns: 1fr 1fr; gap: 0.8rem; margin-top: 0.8rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg.narrow { display: none; }
svg text { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.grid { stroke: var(--faint); } .axis { stroke: var(--c3); } .cursor { stroke: var(--c3); stroke-dasharray: 2 3; }
.c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.line { fill: none; stroke: currentColor; stroke-width: 1.8; stroke-linejoin: round; }
.band { fill: currentColor; opacity: 0.18; } .dot { fill: currentColor; }
.level { stroke: currentColor; stroke-width: 1.6; stroke-dasharray: 6 4; }
.readout { margin: 0; min-height: 1.4em; font-size: 0.82rem; color: var(--soft); font-variant-numeric: tabular-nums; }
.sections { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1.4rem 2.4rem;
  margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; margin-top: 0.4rem; }
td { padding: 0.3rem 0; border-top: 1px solid var(--faint); vertical-align: top; }
td:first-child { color: var(--soft); padding-right: 1rem; white-space: nowrap; }
td:last-child { text-align: right; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.bar { height: 6px; border-radius: 3px; background: var(--c1); min-width: 2px; margin-top: 2px; }
section.sample { margin-top: 2.2rem; }
pre { background: var(--card); border: 1px solid var(--faint); border-radius: 8px; padding: 1rem 1.2rem;
  white-space: pre-wrap; overflow-wrap: anywhere; font: 0.95rem/1.6 Georgia, "DejaVu Serif", serif; margin: 0.5rem 0; }
pre b { color: var(--soft); font-weight: inherit; }
.hint { color: var(--soft); font-size: 0.82rem; margin: 0.2rem 0 0; }
@media (max-width: 44rem) { .plots { grid-template-columns: 1fr; } svg.wide { display: none; }
  svg.narrow { display: block; } .legend { margin-left: 0; width: 100%; } .key { margin: 0 1rem 0 0; }
  body { padding: 1.2rem 0.8rem 3rem; } .headlines { grid-template-columns: 1fr 1fr; }
  figure { padding: 0.8rem 0.6rem 0.4rem; } }
@media print { body { max-width: none; } figure, .card, pre { break-inside: avoid; } }
)css";

const char kReportScript[] = R"js(
for (const figure of document.querySelectorAll("figure[data-plot]")) {
  const plot = JSON.parse(figure.dataset.plot), readout = figure.querySelector(".readout");
  const nearest = (xs, x) => xs.reduce((best, v, i) => Math.abs(v - x) < Math.abs(xs[best] - x) ? i : best, 0);
  for (const svg of figure.querySelectorAll("svg")) {
    const cursor = svg.querySelector(".cursor"), width = svg.viewBox.baseVal.width;
    const left = +svg.dataset.left, right = +svg.dataset.right;
    svg.addEventListener("pointermove", event => {
      const box = svg.getBoundingClientRect();
      const at = Math.min(right, Math.max(left, (event.clientX - box.left) / box.width * width));
      const x = plot.low + (at - left) / (right - left) * (plot.high - plot.low);
      cursor.setAttribute("x1", at); cursor.setAttribute("x2", at); cursor.setAttribute("visibility", "visible");
      readout.textContent = `${plot.x} ${Math.round(x)}: ` + plot.series.map(
        s => `${s.name} ${s.y[nearest(s.x, x)]}`).join(", ");
    });
    svg.addEventListener("pointerleave", () => {
      cursor.setAttribute("visibility", "hidden"); readout.textContent = "";
    });
  }
}
)js";

}  // namespace llm
