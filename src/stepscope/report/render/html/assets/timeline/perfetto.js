"use strict";
// To Perfetto's own page, only when asked: with the trace where this page holds it.
const timelinePerfetto = (() => {
  const ADDRESS = "https://ui.perfetto.dev";
  const PATIENCE_MS = 30_000;

  /** Its page answers PONG once it can take a trace. */
  const hand = (model, name) => {
    const opened = open(ADDRESS);
    if (!opened) return false;
    const started = Date.now();
    const knock = setInterval(() => {
      if (Date.now() - started > PATIENCE_MS || opened.closed) stop();
      else opened.postMessage("PING", ADDRESS);
    }, 200);
    const answered = (event) => {
      if (event.origin !== ADDRESS || event.data !== "PONG") return;
      stop();
      const perfetto = { buffer: model.trace.buffer, title: name, fileName: name };
      opened.postMessage({ perfetto }, ADDRESS);
    };
    const stop = () => {
      clearInterval(knock);
      removeEventListener("message", answered);
    };
    addEventListener("message", answered);
    return true;
  };

  const attach = (dom, model) => {
    const name = dom.root.dataset.trace ?? "the trace";
    dom.perfetto.addEventListener("click", () => {
      if (model.trace && hand(model, name)) return;
      const where = model.trace
        ? "The browser kept the window from opening."
        : `Open ui.perfetto.dev and drop ${name} there: this page does not hold the trace itself.`;
      timelinePanel.note(dom.panel, where);
    });
  };

  return { attach };
})();
