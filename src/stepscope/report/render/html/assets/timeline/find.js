"use strict";
// Search by name: plain text, whatever its letters' case.
const timelineFind = (() => {
  const LONGEST = 480; // Characters; names beyond 500 are cut in the payload.

  /** The first position in ascending numbers that holds at least `wanted`. */
  const from = (numbers, wanted) => {
    let low = 0;
    let high = numbers.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (numbers[middle] < wanted) low = middle + 1;
      else high = middle;
    }
    return low;
  };

  /** Events whose name holds the text: by number, and in order of time. Null for no text. */
  const find = (model, text) => {
    const wanted = text.trim().slice(0, LONGEST).toLowerCase();
    if (!wanted) return null;
    const named = model.names.map((name) => name.toLowerCase().includes(wanted));
    const events = [];
    for (let event = 0; event < model.name.length; event++)
      if (named[model.name[event]]) events.push(event);
    const ordered = Float64Array.from(events, (event) => model.start[event]);
    const order = Uint32Array.from(events.keys()).sort((a, b) => ordered[a] - ordered[b] || a - b);
    return { named, events, ordered: Uint32Array.from(order, (at) => events[at]) };
  };

  /** The next match after (or before) an event or, without one, a time; it goes round. */
  const next = (model, found, event, time, back) => {
    const { ordered } = found;
    if (!ordered.length) return -1;
    let at = ordered.indexOf(event);
    if (at < 0) {
      at = 0;
      while (at < ordered.length && model.start[ordered[at]] < time) at++;
      if (back) at--;
    } else at += back ? -1 : 1;
    return ordered[(at + ordered.length) % ordered.length];
  };

  return { find, next, from };
})();
