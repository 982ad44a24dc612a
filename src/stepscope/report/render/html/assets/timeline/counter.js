"use strict";
// A level over time, as an area: per pixel its highest and lowest.
const timelineCounter = (() => {
  const after = (times, time) => {
    let low = 0;
    let high = times.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (times[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  };

  /** The level at a time; before the first change it is the first known. */
  const at = ({ time, level }, when) => level[Math.max(after(time, when) - 1, 0)] ?? 0;

  const draw = (context, state, counter, top, height) => {
    const { view, width, theme } = state;
    const pixel = (view.to - view.from) / width;
    const scale = (height - 3) / counter.top;
    let next = after(counter.time, view.from);
    let level = at(counter, view.from);
    for (let x = 0; x < width; x++) {
      let [low, high] = [level, level];
      const until = view.from + (x + 1) * pixel;
      for (; next < counter.time.length && counter.time[next] < until; next++) {
        level = counter.level[next];
        low = Math.min(low, level);
        high = Math.max(high, level);
      }
      const y = top + height - high * scale;
      context.fillStyle = theme.memorySoft;
      context.fillRect(x, y, 1, high * scale);
      context.fillStyle = theme.memory;
      context.fillRect(x, y, 1, Math.max((high - low) * scale, 1.5));
    }
    context.fillStyle = theme.muted;
    context.font = theme.font;
    context.textBaseline = "bottom";
    context.textAlign = "right";
    context.fillText(`peak ${timelineWords.size(counter.top)}`, width - 6, top + height - 3);
    context.textAlign = "left";
  };

  return { draw, at };
})();
