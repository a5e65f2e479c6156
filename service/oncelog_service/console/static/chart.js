// Lines over time, drawn by uPlot on a canvas, with their newest values as text beside them: what a screen reader says.

import { html, useEffect, useRef } from "./vendor/htm-preact.js";
import uPlot from "./vendor/uplot.js";
import { clock } from "./format.js";
import { painted } from "./theme.js";
import { useId, useStore } from "./store.js";

const HEIGHT = 130;

const POWERS = Array.from({ length: 50 }, (_, at) => 2 ** at);
const MINUTES_ALONE = 300; // s: of a shorter time the axis says seconds, too

/**
 * `times`: ms, rising; `series`: [{label, values}], at most three; `format`: a value as text. null: nothing is known of that moment.
 * `binary`: its numbers go by powers of two, as bytes do.
 */
export function Chart({ title, times, series, format, binary }) {
  const name = useId();
  const place = useRef(null);
  const plot = useRef(null);
  const colours = useStore(painted);
  const latest = useRef(null);
  latest.current = [times.map((each) => each / 1000), ...series.map((each) => each.values)];
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const probe = document.createElement("span");
    place.current.append(probe);
    const colour = (variable) => {
      probe.style.color = `var(${variable})`;
      return getComputedStyle(probe).color;
    };
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: `11px ${style.fontFamily}` };
    const options = {
      width: place.current.clientWidth || 300,
      height: HEIGHT,
      legend: { show: false },
      cursor: { show: false },
      padding: [8, 6, 0, 0],
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, size: 24, space: 70, values: (_, values) => values.map((each) => moment(each, values)) },
        { ...axis, size: 62, space: 34, values: (_, values) => values.map((each) => format(each)), ...(binary ? { incrs: POWERS } : {}) }],
      series: [{}, ...series.map((each, at) => ({ label: each.label, stroke: colour(`--line-${at + 1}`), width: 1.6, points: { show: false }, spanGaps: false }))],
    };
    probe.remove();
    plot.current = new uPlot(options, latest.current, place.current);
    const resized = new ResizeObserver(() => plot.current?.setSize({ width: place.current.clientWidth, height: HEIGHT }));
    resized.observe(place.current);
    return () => {
      resized.disconnect();
      plot.current.destroy();
      plot.current = null;
    };
  }, [colours, series.length]);
  useEffect(() => plot.current?.setData(latest.current), [times, ...series.map((each) => each.values)]);
  return html`<figure role="group" aria-labelledby=${name}>
    <figcaption><span id=${name}>${title}</span>${series.map((each, at) => html`<span class="legend">
      <span class=${`swatch line-${at + 1}`} aria-hidden="true"></span>${each.label} ${said(each.values, format)}</span>`)}</figcaption>
    <div class="plot" ref=${place} aria-hidden="true"></div>
  </figure>`;
}

function moment(at, all) {
  return clock(at * 1000).slice(0, all.at(-1) - all[0] < MINUTES_ALONE ? 8 : 5);
}

/** The newest value, and for who does not see the line the highest one. */
function said(values, format) {
  const known = values.filter((each) => each !== null && each !== undefined);
  if (!known.length) return "–";
  return html`${format(known.at(-1))}<span class="hidden">, at most ${format(Math.max(...known))} in the last ${values.length} samples</span>`;
}
