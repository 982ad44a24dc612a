"use strict";
// Questions to rows. A row's events are ordered and none overlap: every answer is a binary search.
const timelineRows = (() => {
  const search = (values, low, high, wanted, after) => {
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (values[middle] < wanted || (after && values[middle] === wanted)) low = middle + 1;
      else high = middle;
    }
    return low;
  };

  /** The first event of a row that ends after a time. */
  const endsAfter = (model, row, time) => search(model.end, row.first, row.last, time, true);

  /** The first event from `from` on that starts at a time or later. */
  const startsFrom = (model, row, time, from = row.first) => {
    let step = 1;
    let low = from;
    while (low + step < row.last && model.start[low + step] < time) {
      low += step;
      step *= 2;
    }
    return search(model.start, low, Math.min(low + step + 1, row.last), time, false);
  };

  /** The longest of the events from..until-1, which are at least one. */
  const longest = ({ start, end, blocks, block }, from, until) => {
    let best = from;
    let at = from;
    while (at < until) {
      const whole = at % block === 0 && at + block <= until;
      const one = whole ? blocks[at / block] : at;
      if (end[one] - start[one] > end[best] - start[best]) best = one;
      at += whole ? block : 1;
    }
    return best;
  };

  /** The row that an event is of. */
  const rowOf = (model, event) => {
    let low = 0;
    let high = model.rows.length;
    while (high - low > 1) {
      const middle = (low + high) >>> 1;
      if (model.rows[middle].first <= event) low = middle;
      else high = middle;
    }
    return model.rows[low];
  };

  /** The event at a time, or else the longest within `slack` of it; -1 where there is none. */
  const eventAt = (model, row, time, slack) => {
    const first = endsAfter(model, row, time - slack);
    const until = startsFrom(model, row, time + slack, first);
    if (until <= first) return -1;
    for (let event = first; event < Math.min(until, first + 64); event++)
      if (model.start[event] <= time && time < model.end[event]) return event;
    return longest(model, first, until);
  };

  return { endsAfter, startsFrom, longest, rowOf, eventAt };
})();
