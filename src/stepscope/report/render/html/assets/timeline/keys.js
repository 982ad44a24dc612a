"use strict";
// The keyboard, while the timeline has the focus.
const timelineKeys = (() => {
  const bindings = (actions, dom) => ({
    w: () => actions.zoom(0.7),
    s: () => actions.zoom(1 / 0.7),
    "+": () => actions.zoom(0.7),
    "=": () => actions.zoom(0.7),
    "-": () => actions.zoom(1 / 0.7),
    a: () => actions.slideBy(-0.2),
    d: () => actions.slideBy(0.2),
    arrowleft: () => actions.slideBy(-0.2),
    arrowright: () => actions.slideBy(0.2),
    arrowup: () => (dom.scroller.scrollTop -= 60),
    arrowdown: () => (dom.scroller.scrollTop += 60),
    0: () => actions.whole(),
    home: () => actions.whole(),
    f: () => actions.fitSelection(),
    n: () => actions.step(false),
    p: () => actions.step(true),
    ",": () => actions.walk(-1),
    ".": () => actions.walk(1),
    "/": () => dom.search.focus(),
    escape: () => actions.clear(),
  });

  const attach = (dom, actions) => {
    const keys = bindings(actions, dom);
    dom.body.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const action = keys[event.key.toLowerCase()];
      if (!action) return;
      event.preventDefault();
      action();
    });
    dom.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        actions.step(event.shiftKey);
      } else if (event.key === "Escape") {
        dom.search.value = "";
        actions.find("");
        dom.body.focus({ preventScroll: true });
      }
    });
  };

  return { attach };
})();
