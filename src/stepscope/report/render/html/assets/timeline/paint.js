"use strict";
// Colours of the theme, and rectangles drawn colour by colour.
const timelinePaint = (() => {
  const STRENGTHS = [1, 0.86, 0.74, 0.56, 0.4, 0.24];
  const FAINT = STRENGTHS.length - 1;

  const channels = (hex) => hex.match(/[\da-f]{2}/gi).map((part) => parseInt(part, 16));

  const mixed = (colour, ground, strength) => {
    const [a, b] = [channels(colour), channels(ground)];
    return `rgb(${a.map((one, n) => Math.round(one * strength + b[n] * (1 - strength))).join(" ")})`;
  };

  /** What the theme gives now. `fills[category * levels + level]` is a colour. */
  const theme = (model) => {
    const { colour } = stepscope;
    const ground = colour("--surface");
    const fills = model.categories.flatMap(([, series]) =>
      STRENGTHS.map((strength) => mixed(colour(`--series-${series}`), ground, strength)),
    );
    const named = ["ink", "muted", "line", "grid", "accent", "accent-soft", "surface", "raised"];
    const roles = Object.fromEntries(named.map((name) => [name, colour(`--${name}`)]));
    return {
      ...roles, fills, levels: STRENGTHS.length, on: colour("--on-series"),
      found: colour("--series-2"), busy: colour("--series-1"), memory: colour("--series-6"),
      memorySoft: mixed(colour("--series-6"), ground, 0.28),
      font: `11px ${colour("--sans")}`,
    };
  };

  /** Collects rectangles by colour; neighbours of one colour become one. */
  const brush = (count) => {
    const buckets = Array.from({ length: count }, () => []);
    let last = -1;
    return {
      add(fill, x, y, width, height) {
        const bucket = buckets[fill];
        const size = bucket.length;
        if (last === fill && bucket[size - 3] === y && bucket[size - 4] + bucket[size - 2] >= x)
          bucket[size - 2] = Math.max(bucket[size - 2], x + width - bucket[size - 4]);
        else bucket.push(x, y, width, height);
        last = fill;
      },
      apart() {
        last = -1;
      },
      flush(context, fills) {
        let drawn = 0;
        buckets.forEach((bucket, fill) => {
          if (!bucket.length) return;
          context.fillStyle = fills[fill];
          for (let at = 0; at < bucket.length; at += 4)
            context.fillRect(bucket[at], bucket[at + 1], bucket[at + 2], bucket[at + 3]);
          drawn += bucket.length / 4;
          bucket.length = 0;
        });
        last = -1;
        return drawn;
      },
    };
  };

  return { theme, brush, FAINT };
})();
