"use strict";
// The start: what can be read is there at once; the timeline and the charts follow.
(async () => {
  const instead = (places, words) => {
    for (const place of places) {
      const note = document.createElement("p");
      note.textContent = words;
      place.replaceChildren(note);
    }
  };

  const timeline = async () => {
    const root = document.getElementById("timeline");
    if (root && document.getElementById("timeline-data"))
      stepscopeTimeline(root, await stepscope.unpacked("timeline-data"));
  };

  await stepscope.painted();
  if (typeof DecompressionStream === "undefined") {
    const plots = document.querySelectorAll(".plot, #timeline");
    instead(plots, "Drawn by browsers from 2023 on; this one is older.");
  } else {
    await timeline();
    if (document.getElementById("chart-library")) await stepscopeCharts();
  }
  document.documentElement.dataset.ready = "yes";
})();
