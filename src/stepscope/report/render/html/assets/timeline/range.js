"use strict";
// What is told of a selected stretch of time: the sums of timeline_sums.js as tables.
const timelineRange = (() => {
  const { make } = timelineDom;
  const LISTED = 10;

  const device = (number) => (number < 0 ? "Unknown device" : `GPU ${number}`);

  const list = (caption, rows, whole) => {
    const table = make("table", { class: "tl-sums" }, make("caption", { text: caption }));
    for (const one of rows.slice(0, LISTED))
      table.append(
        make("tr", {},
          make("td", { text: timelineWords.short(one.name, 90), title: one.name }),
          make("td", { text: timelineWords.duration(one.time) }),
          make("td", { text: timelineWords.percent(one.time / whole) }),
          make("td", { text: `${one.count.toLocaleString("en")}×` })),
      );
    if (rows.length > LISTED) {
      const rest = rows.slice(LISTED).reduce((sum, one) => sum + one.time, 0);
      table.append(make("tr", { class: "tl-rest" },
        make("td", { text: `${rows.length - LISTED} more` }),
        make("td", { text: timelineWords.duration(rest) }),
        make("td", { text: timelineWords.percent(rest / whole) }), make("td")));
    }
    return table;
  };

  const show = (panel, sums) => {
    const { duration, moment, percent } = timelineWords;
    const whole = sums.to - sums.from;
    const busiest = [...sums.threads].sort((a, b) => b.busy - a.busy).slice(0, 2);
    panel.replaceChildren(
      make("p", { class: "tl-name", text: `${duration(whole)}, from ${moment(sums.from, 1e3)}` }),
      ...sums.devices.flatMap((one) => [
        make("p", {
          text: `${device(one.device)} busy ${percent(one.busy / whole)} (${duration(one.busy)})`,
        }),
        make("div", { class: "tl-lists" },
          list(`${device(one.device)} by name`, one.names, whole),
          list(`${device(one.device)} by category`, one.categories, whole),
          ...(one.idle.length ? [list(`${device(one.device)} idle`, one.idle, whole)] : [])),
      ]),
      make("div", { class: "tl-lists" },
        ...busiest.map((one) => list(`${one.label}, own time by name`, one.names, whole))),
    );
  };

  return { show };
})();
