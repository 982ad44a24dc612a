"use strict";
// The whole window in one strip: how busy it is, what was found, and which part is on the screen.
const timelineOverview = (() => {
  const HEIGHT = 40;

  /** Rows that tell how busy it was: the devices' work, or else the first thread. */
  const telling = (model) => {
    const work = model.lanes.filter((lane) => lane.kind === "stream" || lane.kind === "copy");
    const lanes = work.length ? work : [model.lanes.find((lane) => lane.kind === "thread")];
    return lanes.filter(Boolean).map((lane) => lane.rows[0]).filter(Boolean);
  };

  const ground = (context, state) => {
    const { model, width, theme } = state;
    const pixel = model.span / width;
    const shares = new Float64Array(Math.ceil(width));
    for (const row of telling(model)) {
      let event = row.first;
      while (event < row.last) {
        const x = Math.floor(model.start[event] / pixel);
        const last = Math.min(Math.floor(model.end[event] / pixel), shares.length - 1);
        if (last > x) {
          for (let at = x; at <= last; at++) {
            const until = Math.min(model.end[event], (at + 1) * pixel);
            shares[at] += (until - Math.max(model.start[event], at * pixel)) / pixel;
          }
          event++;
          continue;
        }
        const next = Math.max(timelineRows.startsFrom(model, row, (x + 1) * pixel, event), event + 1);
        const stop = next - event > 1 && model.end[next - 1] > (x + 1) * pixel ? next - 1 : next;
        if (x < shares.length) shares[x] += (model.sums[stop] - model.sums[event]) / pixel;
        event = stop;
      }
    }
    context.fillStyle = theme.busy;
    for (let x = 0; x < shares.length; x++) {
      const tall = Math.min(shares[x], 1) * (HEIGHT - 8);
      if (tall > 0) context.fillRect(x, HEIGHT - tall, 1, tall);
    }
  };

  /** The busy shares are drawn once per size and theme, the rest over them. */
  const draw = (context, state, kept) => {
    const { model, width, view, theme, ratio } = state;
    const key = `${width} ${ratio} ${document.documentElement.dataset.theme}`;
    if (kept.key !== key) {
      kept.canvas = document.createElement("canvas");
      kept.canvas.width = Math.round(width * ratio);
      kept.canvas.height = Math.round(HEIGHT * ratio);
      const own = kept.canvas.getContext("2d");
      own.scale(ratio, ratio);
      ground(own, state);
      kept.key = key;
    }
    context.drawImage(kept.canvas, 0, 0, width, HEIGHT);
    if (state.found) {
      context.fillStyle = theme.found;
      let reach = -1;
      for (const event of state.found.ordered) {
        const x = Math.floor((model.start[event] / model.span) * width);
        if (x > reach) context.fillRect((reach = x), 0, 1.5, 6);
      }
    }
    const [left, right] = [view.from, view.to].map((time) => (time / model.span) * width);
    context.globalAlpha = 0.62;
    context.fillStyle = theme.surface;
    context.fillRect(0, 0, left, HEIGHT);
    context.fillRect(right, 0, width - right, HEIGHT);
    context.globalAlpha = 1;
    context.strokeStyle = theme.accent;
    context.strokeRect(left + 0.5, 0.5, Math.max(right - left - 1, 2), HEIGHT - 1);
  };

  return { HEIGHT, draw };
})();
