"use strict";
// What happened in a stretch of time: sums over the parts of events that lie in it.
const timelineSums = (() => {
  /** Calls with each event of a row and its nanoseconds inside; of a merged stretch its share. */
  const each = (model, row, from, to, call) => {
    let event = timelineRows.endsAfter(model, row, from);
    for (; event < row.last && model.start[event] < to; event++) {
      const [start, end] = [model.start[event], model.end[event]];
      const part = Math.min(end, to) - Math.max(start, from);
      call(event, end > start ? (part * model.busy[event]) / (end - start) : 0);
    }
  };

  const add = (totals, key, time, count) => {
    const one = totals.get(key) ?? { time: 0, count: 0 };
    one.time += time;
    one.count += count;
    totals.set(key, one);
  };

  const label = (model, event) =>
    model.counts.has(event) ? "(merged short events)" : model.names[model.name[event]];

  const ranked = (totals) =>
    [...totals]
      .map(([name, one]) => ({ name, ...one }))
      .filter((one) => one.count > 0 || one.time > 0)
      .sort((a, b) => b.time - a.time);

  /** Of a device's work, by name and category. */
  const work = (model, lanes, from, to) => {
    const [names, categories] = [new Map(), new Map()];
    for (const lane of lanes)
      for (const row of lane.rows)
        each(model, row, from, to, (event, time) => {
          const count = model.counts.get(event) ?? 1;
          add(names, label(model, event), time, count);
          add(categories, model.categories[model.category[event]][0], time, count);
        });
    return { names: ranked(names), categories: ranked(categories) };
  };

  /** How long any of the lanes had an event. */
  const busy = (model, lanes, from, to) => {
    const spans = [];
    for (const lane of lanes)
      for (const row of lane.rows)
        each(model, row, from, to, (event) =>
          spans.push([Math.max(model.start[event], from), Math.min(model.end[event], to)]),
        );
    spans.sort((a, b) => a[0] - b[0]);
    let [total, reach] = [0, from];
    for (const [start, end] of spans)
      if (end > reach) {
        total += end - Math.max(start, reach);
        reach = end;
      }
    return total;
  };

  /** For events of a row, in order: the one around each in the rows above, -1 without one. */
  const around = (model, above, from) => {
    const places = above.map((row) => timelineRows.endsAfter(model, row, from));
    return (event) => {
      for (let depth = above.length - 1; depth >= 0; depth--) {
        const { last } = above[depth];
        while (places[depth] < last && model.end[places[depth]] <= model.start[event]) places[depth]++;
        const one = places[depth];
        if (one < last && model.start[one] <= model.start[event] && model.end[one] >= model.end[event])
          return one;
      }
      return -1;
    };
  };

  /** A thread's time by name, without what events inside account for. */
  const own = (model, lane, from, to) => {
    const names = new Map();
    lane.rows.forEach((row, depth) => {
      const parentOf = around(model, lane.rows.slice(0, depth), from);
      each(model, row, from, to, (event, time) => {
        add(names, label(model, event), time, model.counts.get(event) ?? 1);
        const parent = parentOf(event);
        if (parent >= 0) add(names, label(model, parent), -time, 0);
      });
    });
    return ranked(names);
  };

  const of = (model, from, to) => {
    const lanes = (kinds) => model.lanes.filter((lane) => kinds.includes(lane.kind));
    const devices = [...new Set(lanes(["stream", "copy"]).map((lane) => lane.device))];
    return {
      from, to,
      devices: devices.map((device) => {
        const mine = (kinds) => lanes(kinds).filter((lane) => lane.device === device);
        const working = mine(["stream", "copy"]);
        return {
          device,
          busy: busy(model, working, from, to),
          idle: work(model, mine(["idle"]), from, to).categories,
          ...work(model, working, from, to),
        };
      }),
      threads: lanes(["thread"]).map((lane) => ({
        label: lane.label,
        busy: busy(model, [{ rows: lane.rows.slice(0, 1) }], from, to),
        names: own(model, lane, from, to),
      })),
    };
  };

  return { of };
})();
