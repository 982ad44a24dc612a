"use strict";
// Buttons: copy code; lead from a finding to its place in the timeline.
(() => {
  const copy = async (button) => {
    const code = button.parentElement.querySelector("code");
    const added = [...code.querySelectorAll("ins")].map((line) => line.textContent);
    const text = added.length ? added.join("\n") : code.textContent;
    const label = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      // No clipboard for this page: the text is selected, for the reader's own keys.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = label), 1600);
  };

  const number = (text) => (text === "" ? null : Number(text));

  const seek = (button) => {
    const { from, to, search } = button.dataset;
    const detail = { from: number(from), to: number(to), search };
    document.getElementById("timeline")?.scrollIntoView({ block: "center" });
    document.dispatchEvent(new CustomEvent("stepscope:seek", { detail }));
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("button[data-act]");
    if (button?.dataset.act === "copy") copy(button);
    if (button?.dataset.act === "seek") seek(button);
  });
})();
