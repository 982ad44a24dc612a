"use strict";
// A recorded window on a canvas. Everything that changes is in `state`; a frame draws it anew.
const stepscopeTimeline = (root, payload) => {
  const model = timelineData.read(payload);
  const dom = timelineDom.build(root);
  const made = timelineLayout.entries(model);
  const state = {
    model, made, view: { from: 0, to: model.span }, width: 0, ratio: 1, theme: null,
    brush: timelinePaint.brush(model.categories.length * 6),
    selected: -1, range: null, found: null, drawn: 0, frameMs: 0,
  };
  const contexts = [dom.overview, dom.ruler, dom.body].map((canvas) => canvas.getContext("2d"));
  const kept = {};
  let asked = false;

  const sized = (canvas, context, width, height) => {
    const [w, h] = [width, height].map((one) => Math.max(Math.round(one * state.ratio), 1));
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
    }
    context.setTransform(state.ratio, 0, 0, state.ratio, 0, 0);
    context.clearRect(0, 0, width, height);
  };

  const marks = (context, tall) => {
    const x = (time) => ((time - state.view.from) / (state.view.to - state.view.from)) * state.width;
    if (!state.range) return;
    const [left, right] = state.range.map(x);
    context.globalAlpha = 0.14;
    context.fillStyle = state.theme.accent;
    context.fillRect(left, 0, Math.max(right - left, 1), tall);
    context.globalAlpha = 1;
  };

  const outline = (context, offset) => {
    if (state.selected < 0) return;
    const box = timelineLayout.box(made, model, timelineRows.rowOf(model, state.selected));
    if (!box) return;
    const scale = state.width / (state.view.to - state.view.from);
    const x = (model.start[state.selected] - state.view.from) * scale;
    const wide = Math.max((model.end[state.selected] - model.start[state.selected]) * scale, 2);
    const left = Math.max(x, -4);
    context.strokeStyle = state.theme.ink;
    context.lineWidth = 2;
    context.strokeRect(left, box.top - offset, Math.min(x + wide, state.width + 4) - left, box.height);
  };

  const draw = () => {
    asked = false;
    const began = performance.now();
    const height = Math.max(dom.scroller.clientHeight, 1);
    const offset = dom.scroller.scrollTop;
    const rulerTall = timelineRuler.height(model);
    sized(dom.overview, contexts[0], state.width, timelineOverview.HEIGHT);
    sized(dom.ruler, contexts[1], state.width, rulerTall);
    sized(dom.body, contexts[2], state.width, height);
    timelineOverview.draw(contexts[0], state, kept);
    timelineRuler.draw(contexts[1], state);
    marks(contexts[1], rulerTall);
    timelineRuler.grid(contexts[2], state, height);
    timelineDraw.lanes(contexts[2], state, offset, height);
    for (const entry of made)
      if (entry.counter && !entry.folded && timelineLayout.seen(entry, offset, height))
        timelineCounter.draw(contexts[2], state, entry.counter, entry.body - offset, entry.height);
    marks(contexts[2], height);
    outline(contexts[2], offset);
    timelineLinks.draw(contexts[2], state, offset);
    state.frameMs = performance.now() - began;
  };

  const redraw = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(draw);
  };

  const resize = () => {
    const tall = timelineLayout.place(made);
    dom.content.style.height = `${tall}px`;
    timelineLayout.placeButtons(made);
    state.width = Math.max(dom.scroller.clientWidth, 50);
    state.ratio = devicePixelRatio || 1;
    redraw();
  };

  const retheme = () => {
    state.theme = timelinePaint.theme(model);
    redraw();
  };

  const actions = timelineActions(dom, state, redraw);
  timelineLayout.buttons(made, dom.content, resize);
  timelinePointer.attach(dom, actions);
  timelineKeys.attach(dom, actions);
  timelinePerfetto.attach(dom, model);
  timelineTools(dom, state, actions);
  timelinePanel.idle(dom.panel, model);
  dom.scroller.addEventListener("scroll", redraw, { passive: true });
  new ResizeObserver(resize).observe(dom.scroller);
  document.addEventListener("stepscope:theme", retheme);
  retheme();
  resize();
  draw();
  root.timeline = { model, state, actions, draw, sums: (from, to) => timelineSums.of(model, from, to) };
  return root.timeline;
};
