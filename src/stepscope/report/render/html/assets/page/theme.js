"use strict";
// Before the first paint: the reader's choice, else the system's. On paper always light.
(() => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paper = matchMedia("print");
  const KEY = "stepscope-theme";

  const chosen = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null; // Framed pages may have no storage.
    }
  };

  const apply = (theme) => {
    if (root.dataset.theme === theme) return;
    root.dataset.theme = theme;
    document.dispatchEvent(new CustomEvent("stepscope:theme", { detail: { theme } }));
    for (const button of document.querySelectorAll('[data-act="theme"]'))
      button.setAttribute("aria-pressed", String(theme === "dark"));
  };

  const refresh = () =>
    apply(paper.matches ? "light" : (chosen() ?? (dark.matches ? "dark" : "light")));

  dark.addEventListener("change", refresh);
  paper.addEventListener("change", refresh);
  addEventListener("beforeprint", () => apply("light"));
  addEventListener("afterprint", refresh);
  document.addEventListener("click", (event) => {
    if (!event.target.closest?.('[data-act="theme"]')) return;
    const next = root.dataset.theme === "dark" ? "light" : "dark";
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // The choice then lasts as long as the page.
    }
    apply(next);
  });
  refresh();
  addEventListener("DOMContentLoaded", () => {
    for (const button of document.querySelectorAll('[data-act="theme"]'))
      button.setAttribute("aria-pressed", String(root.dataset.theme === "dark"));
  });
})();
