"use strict";
// Which stretch of time is on the screen. Never beyond the window, never nothing.
const timelineView = (() => {
  const LEAST = 50; // Nanoseconds.

  const clamped = (span, from, to) => {
    const wide = Math.min(Math.max(to - from, Math.min(LEAST, span)), span);
    const start = Math.min(Math.max(from + (to - from - wide) / 2, 0), span - wide);
    return { from: start, to: start + wide };
  };

  /** `factor` times as much time, the moment at `share` of the width staying where it is. */
  const zoomed = (span, view, factor, share) => {
    const wide = Math.min(Math.max((view.to - view.from) * factor, Math.min(LEAST, span)), span);
    const from = view.from + (view.to - view.from - wide) * share;
    const start = Math.min(Math.max(from, 0), span - wide);
    return { from: start, to: start + wide };
  };

  const slid = (span, view, by) => {
    const wide = view.to - view.from;
    const from = Math.min(Math.max(view.from + by, 0), span - wide);
    return { from, to: from + wide };
  };

  /** A stretch with some room around it. */
  const around = (span, from, to, room = 0.15) =>
    clamped(span, from - (to - from) * room, to + (to - from) * room);

  return { clamped, zoomed, slid, around };
})();
