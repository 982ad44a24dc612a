"use strict";
// Charts: the library is unpacked after the first paint; charts near the screen are drawn first.
const stepscopeCharts = (() => {
  const CONFIG = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  const sources = new Map();
  const drawn = new Set();

  const thin = (hex) => {
    const parts = hex.match(/[\da-f]{2}/gi).map((part) => parseInt(part, 16));
    return `rgba(${parts.join(",")},0.18)`;
  };

  const painted = (text) => {
    const found = /^(var|soft)\((--[a-z0-9-]+)\)$/.exec(text);
    if (!found) return text;
    const colour = stepscope.colour(found[2]);
    return found[1] === "soft" ? thin(colour) : colour;
  };

  // Colours stand under these keys only; strangers' text stands under none of them.
  const COLOURED = new Set(["color", "colors", "fillcolor"]);
  const coloured = (value, key) => {
    if (typeof value === "string") return COLOURED.has(key) ? painted(value) : value;
    if (Array.isArray(value))
      return value.map((one) => (typeof one === "object" || COLOURED.has(key) ? coloured(one, key) : one));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, coloured(v, k)]));
  };

  const themed = ({ data, layout }) => {
    const { colour } = stepscope;
    const axis = (own) => ({
      gridcolor: colour("--grid"),
      linecolor: colour("--line"),
      tickcolor: colour("--line"),
      tickfont: { color: colour("--muted") },
      ...own,
    });
    const made = {
      ...coloured(layout),
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: colour("--sans"), size: 12, color: colour("--ink") },
      hoverlabel: {
        bgcolor: colour("--surface"),
        bordercolor: colour("--line"),
        font: { color: colour("--ink") },
        namelength: 60,
      },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colour("--muted"), activecolor: colour("--ink") },
    };
    if (layout.xaxis) made.xaxis = axis(made.xaxis);
    if (layout.yaxis) made.yaxis = axis(made.yaxis);
    return [coloured(data), made];
  };

  const draw = (chart) => {
    const plot = chart.querySelector(".plot");
    const [data, layout] = themed(sources.get(chart));
    const config = { ...CONFIG, toImageButtonOptions: { filename: chart.id, scale: 2 } };
    drawn.add(chart);
    return Plotly.react(plot, data, layout, config);
  };

  const library = async () => {
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(await stepscope.unpacked("chart-library"));
    document.head.append(script); // Runs at once; the page's policy knows its hash.
  };

  const near = (chart) => {
    const box = chart.getBoundingClientRect();
    return box.top < innerHeight * 1.5 && box.bottom > -innerHeight / 2;
  };

  const idle = () => new Promise((resolve) => (window.requestIdleCallback ?? setTimeout)(resolve));

  const rest = async () => {
    for (const chart of sources.keys()) {
      if (drawn.has(chart)) continue;
      await idle();
      draw(chart);
    }
    document.documentElement.dataset.charts = "drawn";
  };

  const charts = document.querySelectorAll(".chart");
  for (const chart of charts) {
    sources.set(chart, JSON.parse(chart.querySelector("script").textContent));
    chart.querySelector(".plot").style.minHeight = `${chart.dataset.height}px`;
  }

  document.addEventListener("stepscope:theme", () => drawn.forEach(draw));
  const fit = () => {
    for (const chart of drawn) Plotly.Plots.resize(chart.querySelector(".plot"));
  };
  matchMedia("print").addEventListener("change", fit);
  addEventListener("beforeprint", fit);
  addEventListener("afterprint", fit);

  /** Draw those on the screen; the others follow when the page is idle. */
  return async () => {
    await library();
    for (const chart of charts) if (near(chart)) draw(chart);
    rest();
  };
})();
