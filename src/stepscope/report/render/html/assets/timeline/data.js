"use strict";
// The payload of report/html/timeline_data.py as typed arrays. Times: nanoseconds since the origin.
const timelineData = (() => {
  const TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f8: Float64Array };
  const BLOCK = 32;

  /** A column, whose bytes are stored plane by plane. */
  const column = (bytes, [kind, size, offset]) => {
    const array = new TYPES[kind](size);
    const out = new Uint8Array(array.buffer);
    const width = array.BYTES_PER_ELEMENT;
    for (let plane = 0; plane < width; plane++)
      for (let at = 0, from = offset + plane * size; at < size; at++)
        out[at * width + plane] = bytes[from + at];
    return array;
  };

  const times = (rows, gap, duration) => {
    const start = new Float64Array(gap.length);
    const end = new Float64Array(gap.length);
    for (const [, first, count] of rows) {
      let at = 0;
      for (let event = first; event < first + count; event++) {
        start[event] = at + gap[event];
        at = end[event] = start[event] + duration[event];
      }
    }
    return { start, end };
  };

  /** What events are busy with, summed up, so that any stretch of a row is one subtraction. */
  const summed = (busy) => {
    const sums = new Float64Array(busy.length + 1);
    for (let at = 0; at < busy.length; at++) sums[at + 1] = sums[at] + busy[at];
    return sums;
  };

  /** The longest event of each block of BLOCK. */
  const longest = (start, end) => {
    const blocks = new Uint32Array(Math.ceil(start.length / BLOCK));
    for (let block = 0; block < blocks.length; block++) {
      let best = block * BLOCK;
      const until = Math.min(best + BLOCK, start.length);
      for (let at = best + 1; at < until; at++)
        if (end[at] - start[at] > end[best] - start[best]) best = at;
      blocks[block] = best;
    }
    return blocks;
  };

  const launches = (size, at, of) => {
    const launch = new Int32Array(size).fill(-1);
    for (let n = 0, event = 0, call = 0; n < at.length; n++) {
      event += at[n];
      call += of[n];
      launch[event] = call;
    }
    return launch;
  };

  const lanes = (head, row) =>
    head.lanes.map((lane, number) => {
      const rows = row.filter((one) => one.lane === number);
      return { ...lane, rows, ruler: lane.kind === "step" || lane.kind === "phase" };
    });

  const read = (buffer) => {
    const size = new DataView(buffer).getUint32(4, true);
    const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
    const bytes = new Uint8Array(buffer, 8 + size);
    const get = (name) => column(bytes, head.columns[name]);
    const duration = get("duration");
    const { start, end } = times(head.rows, get("gap"), duration);
    const busy = Float64Array.from(duration);
    const counts = new Map();
    const [merged, count, inside] = ["merged", "merged_count", "merged_busy"].map(get);
    merged.forEach((event, n) => {
      counts.set(event, count[n]);
      busy[event] = inside[n];
    });
    const rows = head.rows.map(([lane, first, many]) => ({ lane, first, last: first + many }));
    const counters = head.counters.map((one, n) => {
      const level = get(`level${n}`);
      return { ...one, time: get(`time${n}`), level, top: level.reduce((a, b) => Math.max(a, b), 1) };
    });
    const [offset, length] = head.trace ?? [0, 0];
    return {
      head, start, end, busy, counts, rows, counters,
      span: head.span, names: head.names, details: head.details, categories: head.categories,
      name: get("name"), category: get("category"), detail: get("detail"),
      sums: summed(busy), blocks: longest(start, end), block: BLOCK,
      launch: launches(start.length, get("launched"), get("launch")),
      lanes: lanes(head, rows),
      trace: head.trace ? bytes.slice(offset, offset + length) : null,
    };
  };

  return { read };
})();
