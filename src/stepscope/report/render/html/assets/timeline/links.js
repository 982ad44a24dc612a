"use strict";
// From a call to the work it launched, and back.
const timelineLinks = (() => {
  const MOST = 24; // Arrows from one call, such as a graph's launch.

  /** Pairs [call, work] that an event is part of. */
  const of = (model, event) => {
    if (event < 0) return [];
    if (model.launch[event] >= 0) return [[model.launch[event], event]];
    model.launched ??= launched(model);
    return (model.launched.get(event) ?? []).slice(0, MOST).map((work) => [event, work]);
  };

  const launched = (model) => {
    const found = new Map();
    model.launch.forEach((call, work) => {
      if (call < 0) return;
      if (found.has(call)) found.get(call).push(work);
      else found.set(call, [work]);
    });
    return found;
  };

  const draw = (context, state, offset) => {
    const { model, view, width, theme, made } = state;
    const x = (time) => ((time - view.from) / (view.to - view.from)) * width;
    context.strokeStyle = context.fillStyle = theme.ink;
    context.lineWidth = 1.2;
    for (const [call, work] of of(model, state.selected)) {
      const [a, b] = [call, work].map((event) =>
        timelineLayout.box(made, model, timelineRows.rowOf(model, event)),
      );
      if (!a || !b) continue;
      const down = b.top > a.top;
      const [x1, x2] = [x(model.start[call]), x(model.start[work])];
      const y1 = (down ? a.top + a.height : a.top) - offset;
      const y2 = (down ? b.top : b.top + b.height) - offset;
      const bend = (y1 + y2) / 2;
      context.beginPath();
      context.moveTo(x1, y1);
      context.bezierCurveTo(x1, bend, x2, bend, x2, y2);
      context.stroke();
      context.beginPath();
      context.moveTo(x2, y2);
      context.lineTo(x2 - 4, y2 + (down ? -7 : 7));
      context.lineTo(x2 + 4, y2 + (down ? -7 : 7));
      context.fill();
    }
  };

  return { of, draw };
})();
