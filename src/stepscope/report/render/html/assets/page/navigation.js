"use strict";
// The bar: which section is being read, and the verdict once it has left the screen.
(() => {
  const bar = document.querySelector(".bar");
  const links = new Map();
  for (const link of bar.querySelectorAll("nav a"))
    links.set(document.getElementById(link.hash.slice(1)), link);

  const reading = () => {
    const edge = bar.getBoundingClientRect().bottom + 40;
    let current = null;
    for (const section of links.keys())
      if (section.getBoundingClientRect().top <= edge) current = section;
    const last = [...links.keys()].at(-1);
    if (last && innerHeight + scrollY >= document.body.scrollHeight - 2 && scrollY > 0)
      current = last;
    return current;
  };

  let shown = null;
  const update = () => {
    const hero = document.querySelector(".hero h1").getBoundingClientRect();
    bar.classList.toggle("past", hero.bottom < bar.offsetHeight);
    const current = reading();
    if (current === shown) return;
    links.get(shown)?.removeAttribute("aria-current");
    const link = links.get(current);
    link?.setAttribute("aria-current", "true");
    if (link) {
      const nav = link.parentElement;
      nav.scrollLeft = link.offsetLeft - nav.offsetLeft - nav.clientWidth / 3;
    }
    shown = current;
  };

  let asked = false;
  const later = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      update();
    });
  };
  addEventListener("scroll", later, { passive: true });
  addEventListener("resize", later);
  later();
})();
