"use strict";
// What is told of an event, under the pointer or selected.
const timelinePanel = (() => {
  const { make } = timelineDom;
  const DETAILS = { idle: "because of", thread: "inputs" };

  /** Pairs of a word and what is known of an event. */
  const facts = (model, event) => {
    const lane = model.lanes[timelineRows.rowOf(model, event).lane];
    const told = [
      ["lasts", timelineWords.duration(model.end[event] - model.start[event])],
      ["starts at", timelineWords.moment(model.start[event], 1e3)],
      ["on", lane.label],
      ["kind", model.categories[model.category[event]][0]],
    ];
    const detail = model.details[model.detail[event] - 1];
    if (detail) told.push([DETAILS[lane.kind] ?? "how", detail]);
    const count = model.counts.get(event);
    if (count) {
      const together = timelineWords.duration(model.busy[event]);
      told.push(["merged", `${timelineWords.plural(count, "short event")}, ${together} together`]);
    }
    return told;
  };

  const title = (model, event) => {
    const name = model.names[model.name[event]];
    return model.counts.has(event) ? `short events, the longest: ${name}` : name;
  };

  const told = (model, event) => [title(model, event), facts(model, event)];

  const level = (counter, time) => [
    counter.label,
    [
      ["is", timelineWords.size(timelineCounter.at(counter, time))],
      ["at", timelineWords.moment(time, 1e3)],
    ],
  ];

  /** What is under the pointer, beside it. */
  const tip = (element, [name, pairs], x, y, room) => {
    element.replaceChildren(
      make("b", { text: timelineWords.short(name, 160) }),
      ...pairs.map(([word, value]) =>
        make("div", {}, make("span", { text: `${word} ` }), timelineWords.short(value, 140)),
      ),
    );
    element.hidden = false;
    const wide = element.offsetWidth;
    element.style.left = `${Math.max(0, Math.min(x + 14, room - wide - 4))}px`;
    element.style.top = `${y + 18}px`;
  };

  /** Of a selected event, with how long its work waited where it launched any. */
  const event = (panel, model, chosen, go) => {
    const list = make("dl", { class: "tl-facts" });
    for (const [word, value] of facts(model, chosen))
      list.append(make("div", {}, make("dt", { text: word }), make("dd", { text: value })));
    const links = timelineLinks.of(model, chosen);
    const buttons = links.slice(0, 4).map(([call, work]) => {
      const other = call === chosen ? work : call;
      const late = timelineWords.duration(Math.max(model.start[work] - model.start[call], 0));
      const begin = call === chosen ? `launched, ${late} later: ` : `launched ${late} before by: `;
      const name = timelineWords.short(model.names[model.name[other]], 60);
      const link = make("button", { type: "button", text: begin + name });
      link.addEventListener("click", () => go(other));
      return link;
    });
    panel.replaceChildren(make("p", { class: "tl-name", text: title(model, chosen) }), list, ...buttons);
  };

  const note = (panel, told) => panel.replaceChildren(make("p", { class: "tl-note", text: told }));

  /** What stands there while nothing is selected. */
  const idle = (panel, model) => {
    const { events, merged, untold } = model.head;
    let told = `${timelineWords.plural(events, "event")} in ${timelineWords.duration(model.span)}.`;
    if (merged)
      told +=
        ` ${merged.toLocaleString("en")} short ones are merged with their neighbours:` +
        " the trace has them all.";
    if (untold)
      told +=
        ` ${timelineWords.plural(untold, "event")} of threads that did little, or nested very` +
        " deep, are left out.";
    note(panel, `${told} Click an event, or drag along the ruler to sum up a stretch.`);
  };

  return { told, level, tip, event, note, idle };
})();
