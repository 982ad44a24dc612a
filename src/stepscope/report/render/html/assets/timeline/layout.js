"use strict";
// Where each lane stands, and the buttons that fold it.
const timelineLayout = (() => {
  const ROW = 17;
  const HEAD = 22;
  const FOLDED = 7;
  const COUNTER = 46;
  const SPACE = 5;
  const OPEN_LANES = 12; // Further ones start folded.
  const DEEP = 14; // Rows at which another thread than the first starts folded.

  /** Lanes and counters in order, without the ruler's. Counters follow their device's work. */
  const entries = (model) => {
    const lanes = model.lanes.filter((lane) => !lane.ruler);
    const made = [];
    const counters = [...model.counters];
    lanes.forEach((lane, at) => {
      made.push({ lane, label: lane.label, folded: false });
      const next = lanes[at + 1];
      if (lane.device === null || next?.device === lane.device) return;
      for (const counter of counters.filter((one) => one.device === lane.device)) {
        made.push({ counter, label: counter.label, folded: false });
        counters.splice(counters.indexOf(counter), 1);
      }
    });
    for (const counter of counters) made.push({ counter, label: counter.label, folded: false });
    let threads = 0;
    made.forEach((entry, at) => {
      if (entry.lane?.kind === "thread")
        entry.folded = threads++ > 0 && (at >= OPEN_LANES || entry.lane.rows.length > DEEP);
    });
    return made;
  };

  const height = (entry) => {
    if (entry.folded) return FOLDED;
    return entry.counter ? COUNTER : entry.lane.rows.length * ROW;
  };

  /** Sets every entry's `top` (of its header) and `body`; gives the whole height. */
  const place = (made) => {
    let y = 0;
    for (const entry of made) {
      entry.top = y;
      entry.body = y + HEAD;
      entry.height = height(entry);
      y = entry.body + entry.height + SPACE;
    }
    return y;
  };

  /** A button per entry, which folds and unfolds it. */
  const buttons = (made, content, changed) => {
    for (const entry of made) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "tl-lane";
      button.textContent = entry.label;
      button.addEventListener("click", () => {
        entry.folded = !entry.folded;
        changed();
      });
      content.append(button);
      entry.button = button;
    }
  };

  const placeButtons = (made) => {
    for (const entry of made) {
      entry.button.style.top = `${entry.top}px`;
      entry.button.setAttribute("aria-expanded", String(!entry.folded));
    }
  };

  /** The entry and its row at a height; row -1 in what has none. */
  const at = (made, y) => {
    const entry = made.find((one) => y >= one.body && y < one.body + one.height);
    if (!entry) return null;
    const row = entry.counter ? -1 : entry.folded ? 0 : Math.floor((y - entry.body) / ROW);
    return { entry, row };
  };

  /** Whether an entry is on the screen, which begins `offset` pixels down and is so tall. */
  const seen = (entry, offset, tall) =>
    entry.body + entry.height > offset && entry.body < offset + tall;

  /** Where an event is drawn: its top and height. */
  const box = (made, model, row) => {
    const entry = made.find((one) => one.lane?.rows.includes(row));
    if (!entry) return null;
    const depth = entry.lane.rows.indexOf(row);
    if (entry.folded) return { top: entry.body, height: FOLDED, entry };
    return { top: entry.body + depth * ROW, height: ROW - 1, entry };
  };

  return { ROW, FOLDED, entries, place, buttons, placeButtons, at, seen, box };
})();
