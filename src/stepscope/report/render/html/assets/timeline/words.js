"use strict";
// Times, sizes and names as people read them.
const timelineWords = (() => {
  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

  const unitFor = (ns) => UNITS.find(([size]) => Math.abs(ns) >= size) ?? UNITS.at(-1);

  /** `1.24 ms`. */
  const duration = (ns) => {
    const [size, unit] = unitFor(ns);
    const value = ns / size;
    const digits = unit === "ns" ? 0 : Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
    return `${value.toFixed(digits)} ${unit}`;
  };

  /** A moment, with as many digits as the space between ticks asks for. */
  const moment = (ns, spacing) => {
    const [size, unit] = unitFor(Math.max(Math.abs(ns), spacing));
    const digits = Math.max(0, Math.ceil(-Math.log10(spacing / size) - 1e-9));
    return `${(ns / size).toFixed(digits)} ${unit}`;
  };

  /** Between ticks: 1, 2 or 5 of a power of ten, at least so many nanoseconds. */
  const spacing = (least) => {
    const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
    return [1, 2, 5, 10].map((n) => n * power).find((one) => one >= least);
  };

  /** `3.1 GiB`. */
  const size = (bytes) => {
    let value = bytes;
    for (const unit of ["B", "KiB", "MiB"]) {
      if (value < 1024) return `${value.toFixed(value >= 10 || unit === "B" ? 0 : 1)} ${unit}`;
      value /= 1024;
    }
    return `${value.toFixed(1)} GiB`;
  };

  const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}%`;

  const COMMON = /^(void|idle:) /; // Begins many names and tells nothing where they stand.

  /** A name cut to so many characters. */
  const short = (name, most) => {
    const told = name.replace(COMMON, "");
    return told.length <= most ? told : `${told.slice(0, most - 1)}…`;
  };

  const plural = (count, noun, several = `${noun}s`) =>
    `${count.toLocaleString("en")} ${count === 1 ? noun : several}`;

  return { duration, moment, spacing, size, percent, short, plural };
})();
