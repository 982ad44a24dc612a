"use strict";
// The buttons and the search box above the timeline, and findings that lead here.
const timelineTools = (dom, state, actions) => {
  const PAUSE_MS = 120; // Between two letters.
  let waiting = 0;
  dom.search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => actions.find(dom.search.value), PAUSE_MS);
  });
  dom.next.addEventListener("click", () => actions.step(false));
  dom.previous.addEventListener("click", () => actions.step(true));
  dom.closer.addEventListener("click", () => actions.zoom(0.5));
  dom.away.addEventListener("click", () => actions.zoom(2));
  dom.all.addEventListener("click", actions.whole);
  document.addEventListener("stepscope:seek", (event) => actions.seek(event.detail));
};
