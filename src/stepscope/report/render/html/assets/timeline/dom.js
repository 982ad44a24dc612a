"use strict";
// The timeline's elements. Strangers' text becomes text nodes only.
const timelineDom = (() => {
  const make = (tag, options = {}, ...children) => {
    const { text, title, ...attributes } = options;
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (title !== undefined) element.title = title;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  };

  const button = (text, label, more = {}) =>
    make("button", { type: "button", text, "aria-label": label, title: label, ...more });

  const KEYS =
    "Drag to move; scroll to zoom once the timeline is clicked, or with Ctrl held; drag the ruler, " +
    "or with Shift held, to sum up a stretch. Keys: W S zoom, A D move, F fits the selection, " +
    "0 shows everything, / searches, N and P go through what was found, , and . walk along a row.";

  const build = (root) => {
    const search = make("input", {
      type: "search", class: "tl-search", placeholder: "Find a kernel or operator",
      "aria-label": "Find in the timeline", spellcheck: "false", autocomplete: "off",
    });
    const count = make("span", { class: "tl-count", role: "status" });
    const [previous, next] = [button("‹", "Previous match"), button("›", "Next match")];
    const [closer, away] = [button("+", "Zoom in"), button("−", "Zoom out")];
    const all = button("Fit", "Show the whole window");
    const perfetto = make("button", { type: "button", class: "quiet", text: "Open in Perfetto" });
    const help = button("?", "Keys and gestures", { class: "quiet", "aria-expanded": "false" });
    const keys = make("p", { class: "tl-keys", text: KEYS, hidden: "" });
    const tools = make("div", { class: "tl-tools" }, search, previous, next, count,
      make("span", { class: "tl-space" }), closer, away, all, perfetto, help);
    const overview = make("canvas", { class: "tl-overview", "aria-hidden": "true" });
    const ruler = make("canvas", { class: "tl-ruler", "aria-hidden": "true" });
    const body = make("canvas", {
      class: "tl-body", tabindex: "0", role: "application",
      "aria-label": "Timeline. W and S zoom, A and D move, slash searches.",
    });
    const content = make("div", { class: "tl-content" }, body);
    const scroller = make("div", { class: "tl-scroller" }, content);
    const tip = make("div", { class: "tl-tip", hidden: "" });
    const frame = make("div", { class: "tl-frame" }, overview, ruler, scroller, tip);
    const panel = make("div", { class: "tl-panel", "aria-live": "polite" });
    root.classList.add("tl");
    root.replaceChildren(tools, keys, frame, panel);
    help.addEventListener("click", () => {
      keys.hidden = !keys.hidden;
      help.setAttribute("aria-expanded", String(!keys.hidden));
    });
    return {
      root, search, count, previous, next, closer, away, all, perfetto,
      overview, ruler, body, content, scroller, tip, frame, panel,
    };
  };

  return { make, build };
})();
