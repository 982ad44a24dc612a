"use strict";
// Rows of events. Those narrower than a pixel share one: the longest gives its colour, and how
// much of the pixel's time is busy gives its strength.
const timelineDraw = (() => {
  const LABEL = 26; // Pixels an event needs to carry its name.
  const LETTER = 6.1;

  const strength = (share) => (share > 0.75 ? 0 : share > 0.45 ? 2 : share > 0.2 ? 3 : 4);

  /** One row into the brush. Names to be written are added to `labels`. */
  const row = (state, one, y, height, labels) => {
    const { model, view, width, brush, theme } = state;
    const { start, end, sums, category, name } = model;
    const scale = width / (view.to - view.from);
    const pixel = 1 / scale;
    const faint = state.found ? timelinePaint.FAINT : -1;
    brush.apart();
    let event = timelineRows.endsAfter(model, one, view.from);
    while (event < one.last && start[event] < view.to) {
      const x = (start[event] - view.from) * scale;
      const wide = (end[event] - start[event]) * scale;
      if (wide >= 1) {
        const left = Math.max(x, 0);
        const shown = Math.min(x + wide, width) - left;
        const level = faint >= 0 ? faint : name[event] % 3;
        const gap = shown > 3 ? 0.6 : 0; // So that neighbours can be told apart.
        brush.add(category[event] * theme.levels + level, left, y, shown - gap, height);
        if (gap) brush.apart();
        if (shown >= LABEL && height > 10) labels.push(event, left, y, shown);
        event++;
        continue;
      }
      const column = Math.floor(x);
      let next = timelineRows.startsFrom(model, one, view.from + (column + 1) * pixel, event);
      if (next <= event) next = event + 1;
      if (next - event > 1 && end[next - 1] - start[next - 1] >= pixel) next--;
      const best = timelineRows.longest(model, event, next);
      const level = faint >= 0 ? faint : strength((sums[next] - sums[event]) / pixel);
      brush.add(category[best] * theme.levels + level, Math.max(column, 0), y, 1, height);
      event = next;
    }
  };

  const write = (context, state, labels) => {
    const { model, theme, found } = state;
    context.font = theme.font;
    context.textBaseline = "middle";
    for (let at = 0; at < labels.length; at += 4) {
      const most = Math.floor((labels[at + 3] - 8) / LETTER);
      if (most < 2) continue;
      const name = model.name[labels[at]];
      const text = timelineWords.short(model.names[name], most);
      context.fillStyle = !found || found.named[name] ? theme.on : theme.muted;
      context.fillText(text, labels[at + 1] + 4, labels[at + 2] + timelineLayout.ROW / 2);
    }
  };

  /** What the search found in a row, at least two pixels wide each. */
  const matches = (context, state, one, y, height) => {
    const { model, view, width, found } = state;
    const scale = width / (view.to - view.from);
    let at = timelineFind.from(found.events, one.first);
    const until = timelineFind.from(found.events, one.last);
    const first = timelineRows.endsAfter(model, one, view.from);
    at = Math.max(at, timelineFind.from(found.events, first));
    let reach = -1;
    for (; at < until; at++) {
      const event = found.events[at];
      if (model.start[event] >= view.to) return;
      const x = Math.max((model.start[event] - view.from) * scale, 0);
      const wide = Math.max(Math.min((model.end[event] - view.from) * scale, width) - x, 2);
      if (x + wide <= reach) {
        const next = timelineRows.startsFrom(model, one, view.from + reach / scale, event);
        at = Math.max(at, timelineFind.from(found.events, next) - 1);
        continue;
      }
      context.fillRect(x, y, wide > 4 ? wide - 0.6 : wide, height);
      reach = Math.floor(x + wide) + 1;
    }
  };

  /** All lanes that are on the screen, `offset` pixels scrolled. */
  const lanes = (context, state, offset, height) => {
    const { made, theme } = state;
    const { ROW } = timelineLayout;
    const labels = [];
    const shown = [];
    for (const entry of made) {
      if (!entry.lane || !timelineLayout.seen(entry, offset, height)) continue;
      const rows = entry.folded ? entry.lane.rows.slice(0, 1) : entry.lane.rows;
      rows.forEach((one, depth) => {
        const y = entry.body + depth * ROW - offset;
        const tall = entry.folded ? entry.height : ROW - 1;
        if (y + tall < 0 || y > height) return;
        row(state, one, y, tall, labels);
        shown.push([one, y, tall]);
      });
    }
    state.drawn = state.brush.flush(context, theme.fills);
    if (state.found) {
      context.fillStyle = theme.found;
      for (const [one, y, tall] of shown) matches(context, state, one, y, tall);
    }
    write(context, state, labels);
  };

  return { lanes, row, write };
})();
