"use strict";
// Mouse, pen and touch: move, zoom, select.
const timelinePointer = (() => {
  const CLICK = 4; // Pixels a press may wander and still be a click.

  const attach = (dom, actions) => {
    const pressed = new Map();
    let drag = null;

    const at = (event) => {
      const box = dom.body.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };

    const spread = () => {
      const [a, b] = [...pressed.values()];
      return { middle: (a.x + b.x) / 2, wide: Math.max(Math.abs(a.x - b.x), 24) };
    };

    const down = (event, ruler) => {
      if (event.button !== 0) return;
      const place = at(event);
      pressed.set(event.pointerId, place);
      event.currentTarget.setPointerCapture(event.pointerId);
      actions.leave();
      if (pressed.size === 2) drag = { pinch: spread(), view: actions.view() };
      else {
        const range = ruler || event.shiftKey;
        const { scrollTop } = dom.scroller;
        const touch = event.pointerType === "touch"; // The browser itself scrolls then.
        drag = { ...place, range, touch, scrollTop, moved: false, view: actions.view() };
      }
    };

    const move = (event, ruler) => {
      const place = at(event);
      if (!pressed.has(event.pointerId)) return actions.hover(place, ruler);
      pressed.set(event.pointerId, place);
      if (!drag) return undefined;
      if (drag.pinch && pressed.size === 2) return actions.pinch(drag.view, drag.pinch, spread());
      const far = Math.abs(place.x - drag.x) + Math.abs(place.y - drag.y) > CLICK;
      drag.moved ||= far;
      if (!drag.moved || drag.pinch) return undefined;
      if (drag.range) return actions.range(drag.x, place.x);
      if (!drag.touch) dom.scroller.scrollTop = drag.scrollTop - (place.y - drag.y);
      return actions.slide(drag.view, drag.x - place.x);
    };

    const up = (event, ruler) => {
      const was = drag;
      pressed.delete(event.pointerId);
      if (pressed.size === 0) drag = null;
      if (was && !was.pinch && !was.moved && event.type === "pointerup") actions.pick(at(event), ruler);
    };

    for (const [canvas, ruler] of [[dom.body, false], [dom.ruler, true]]) {
      canvas.addEventListener("pointerdown", (event) => down(event, ruler));
      canvas.addEventListener("pointermove", (event) => move(event, ruler));
      canvas.addEventListener("pointerup", (event) => up(event, ruler));
      canvas.addEventListener("pointercancel", (event) => up(event, ruler));
      canvas.addEventListener("pointerleave", () => actions.leave());
      canvas.addEventListener("dblclick", (event) => actions.fit(at(event), ruler));
    }

    // A page is scrolled through: the wheel zooms only where the reader asked for it.
    const wheel = (event) => {
      const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
      const unit = event.deltaMode === 1 ? 16 : 1;
      const zooms = event.ctrlKey || event.metaKey || document.activeElement === dom.body;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        event.preventDefault();
        actions.slide(actions.view(), sideways * unit);
      } else if (zooms) {
        event.preventDefault();
        const strength = event.ctrlKey && event.deltaMode === 0 ? 0.006 : 0.0022;
        actions.zoom(Math.exp(event.deltaY * unit * strength), at(event).x);
      }
    };
    dom.frame.addEventListener("wheel", wheel, { passive: false });

    const jump = (event) => {
      if (event.buttons & 1) actions.centre(event.clientX - dom.overview.getBoundingClientRect().left);
    };
    dom.overview.addEventListener("pointerdown", (event) => {
      dom.overview.setPointerCapture(event.pointerId);
      jump(event);
    });
    dom.overview.addEventListener("pointermove", jump);
  };

  return { attach };
})();
