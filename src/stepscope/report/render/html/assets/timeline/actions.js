"use strict";
// All that a reader can do, whichever way it was asked for.
const timelineActions = (dom, state, redraw) => {
  const { model, made } = state;
  const { clamped, zoomed, slid, around } = timelineView;
  const timeAt = (x) => state.view.from + (x / state.width) * (state.view.to - state.view.from);

  const placeAt = (y) => timelineLayout.at(made, y + dom.scroller.scrollTop);

  const look = (view) => {
    state.view = view;
    dom.tip.hidden = true; // What it told of has moved.
    redraw();
  };

  /** The event at a place of the canvas; -1 where there is none. */
  const eventAt = ({ x, y }, ruler) => {
    const slack = ((state.view.to - state.view.from) / state.width) * 1.5;
    if (ruler) {
      const top = dom.body.getBoundingClientRect().top - dom.ruler.getBoundingClientRect().top;
      const row = timelineRuler.rowAt(model, y + top);
      return row ? timelineRows.eventAt(model, row, timeAt(x), slack) : -1;
    }
    const place = placeAt(y);
    const row = place?.entry.lane?.rows[place.row];
    return row ? timelineRows.eventAt(model, row, timeAt(x), slack) : -1;
  };

  const leave = () => (dom.tip.hidden = true);

  const select = (event) => {
    state.selected = event;
    state.range = null;
    if (event < 0) timelinePanel.idle(dom.panel, model);
    else timelinePanel.event(dom.panel, model, event, show);
    redraw();
  };

  /** Brings an event into sight, close enough to be seen, and selects it. */
  const show = (event) => {
    const [start, end] = [model.start[event], model.end[event]];
    const wide = state.view.to - state.view.from;
    const inside = start >= state.view.from && end <= state.view.to;
    const small = ((end - start) / wide) * state.width < 12;
    if (!inside || small) {
      const half = Math.max((end - start) * 4, Math.min(wide / 2, (end - start || 1000) * 30));
      look(clamped(model.span, (start + end) / 2 - half, (start + end) / 2 + half));
    }
    const row = timelineRows.rowOf(model, event);
    const entry = made.find((one) => one.lane?.rows.includes(row));
    if (entry?.folded) entry.button.click();
    const box = timelineLayout.box(made, model, row);
    const { scrollTop, clientHeight } = dom.scroller;
    if (box && (box.top < scrollTop || box.top + box.height > scrollTop + clientHeight))
      dom.scroller.scrollTop = box.top - clientHeight / 2;
    select(event);
  };

  const summed = (from, to) => {
    state.selected = -1;
    state.range = [Math.max(from, 0), Math.min(to, model.span)];
    timelineRange.show(dom.panel, timelineSums.of(model, ...state.range));
    redraw();
  };

  let summing = false;
  const range = (a, b) => {
    state.range = [timeAt(Math.min(a, b)), timeAt(Math.max(a, b))];
    redraw();
    if (summing) return;
    summing = true;
    requestAnimationFrame(() => {
      summing = false;
      if (state.range) summed(...state.range);
    });
  };

  const find = (text) => {
    state.found = timelineFind.find(model, text);
    const { found } = state;
    dom.count.textContent = found ? timelineWords.plural(found.events.length, "match", "matches") : "";
    redraw();
  };

  const step = (back) => {
    if (!state.found) return;
    const event = timelineFind.next(model, state.found, state.selected, state.view.from, back);
    if (event < 0) return;
    show(event);
    const { ordered } = state.found;
    const [at, all] = [ordered.indexOf(event) + 1, ordered.length];
    dom.count.textContent = `${at.toLocaleString("en")} of ${all.toLocaleString("en")}`;
  };

  return {
    eventAt, leave, select, show, summed, range, find, step,
    view: () => state.view,
    whole: () => look({ from: 0, to: model.span }),
    zoom: (factor, x = state.width / 2) => look(zoomed(model.span, state.view, factor, x / state.width)),
    slide: (view, pixels) =>
      look(slid(model.span, view, (pixels / state.width) * (view.to - view.from))),
    slideBy: (share) => look(slid(model.span, state.view, share * (state.view.to - state.view.from))),
    centre: (x) => {
      const wide = state.view.to - state.view.from;
      look(slid(model.span, state.view, (x / state.width) * model.span - wide / 2 - state.view.from));
    },
    pinch: (view, before, now) => {
      const closer = zoomed(model.span, view, before.wide / now.wide, before.middle / state.width);
      const share = (before.middle - now.middle) / state.width;
      look(slid(model.span, closer, share * (closer.to - closer.from)));
    },
    hover: (place, ruler) => {
      const event = eventAt(place, ruler);
      const counter = ruler ? null : placeAt(place.y)?.entry.counter;
      if (event < 0 && !counter) return leave();
      const told = counter
        ? timelinePanel.level(counter, timeAt(place.x))
        : timelinePanel.told(model, event);
      const frame = dom.frame.getBoundingClientRect();
      const y = place.y + dom.body.getBoundingClientRect().top - frame.top;
      return timelinePanel.tip(dom.tip, told, place.x, y, frame.width);
    },
    pick: (place, ruler) => select(eventAt(place, ruler)),
    fit: (place, ruler) => {
      const event = eventAt(place, ruler);
      if (event < 0) look({ from: 0, to: model.span });
      else look(around(model.span, model.start[event], model.end[event]));
    },
    fitSelection: () => {
      const { range: stretch, selected } = state;
      if (stretch) look(around(model.span, ...stretch));
      else if (selected >= 0) look(around(model.span, model.start[selected], model.end[selected]));
    },
    walk: (by) => {
      if (state.selected < 0) return;
      const row = timelineRows.rowOf(model, state.selected);
      const next = state.selected + by;
      if (next >= row.first && next < row.last) show(next);
    },
    clear: () => {
      dom.search.value = "";
      find("");
      select(-1);
    },
    /** A place in the timeline's own nanoseconds, and a name to look for there. */
    seek: ({ from, to, search }) => {
      dom.search.value = search ?? "";
      find(dom.search.value);
      if ((from ?? null) === null || (to ?? null) === null) return step(false);
      const [start, end] = [from - model.head.origin, to - model.head.origin];
      const exact = state.found?.ordered.find((event) => model.start[event] === start);
      look(around(model.span, start, end, 1));
      return exact === undefined ? summed(start, end) : show(exact);
    },
  };
};
