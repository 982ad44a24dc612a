"use strict";
// What stays above the lanes: the time, steps and phases. And the grid below it.
const timelineRuler = (() => {
  const AXIS = 22;
  const lanesOf = (model) => model.lanes.filter((lane) => lane.ruler);
  const height = (model) => AXIS + lanesOf(model).length * timelineLayout.ROW + 2;

  const ticks = ({ view, width }) => {
    const step = timelineWords.spacing(((view.to - view.from) / width) * 110);
    const found = [];
    for (let time = Math.ceil(view.from / step) * step; time <= view.to; time += step)
      found.push([time, ((time - view.from) / (view.to - view.from)) * width]);
    return { step, found };
  };

  const grid = (context, state, tall) => {
    context.fillStyle = state.theme.grid;
    for (const [, x] of ticks(state).found) context.fillRect(Math.round(x), 0, 1, tall);
  };

  const draw = (context, state) => {
    const { theme, model } = state;
    const { step, found } = ticks(state);
    context.font = theme.font;
    context.textBaseline = "middle";
    for (const [time, x] of found) {
      context.fillStyle = theme.line;
      context.fillRect(Math.round(x), AXIS - 5, 1, 5);
      context.fillStyle = theme.muted;
      context.fillText(timelineWords.moment(time, step), Math.round(x) + 4, AXIS - 11);
    }
    const labels = [];
    const plain = { ...state, found: null }; // A search leaves the ruler as it is.
    lanesOf(model).forEach((lane, at) => {
      const { ROW } = timelineLayout;
      if (lane.rows.length) timelineDraw.row(plain, lane.rows[0], AXIS + at * ROW, ROW - 1, labels);
    });
    state.brush.flush(context, theme.fills);
    timelineDraw.write(context, plain, labels);
  };

  /** The row of the ruler at a height; null on the axis. */
  const rowAt = (model, y) => {
    const lane = lanesOf(model)[Math.floor((y - AXIS) / timelineLayout.ROW)];
    return y >= AXIS && lane ? lane.rows[0] : null;
  };

  return { height, draw, grid, rowAt };
})();
