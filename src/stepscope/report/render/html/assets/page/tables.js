"use strict";
// Tables: sort by a click on a heading, filter by a box, show the rest, save as CSV.
(() => {
  const value = (cell, number) => {
    const raw = cell.dataset.v ?? cell.textContent;
    if (!number) return raw;
    return raw === "" || Number.isNaN(Number(raw)) ? null : Number(raw);
  };

  const words = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

  const ordered = (rows, column, number, direction) => {
    const keyed = rows.map((row) => [value(row.cells[column], number), row]);
    keyed.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // Unknown ones last.
      return direction * (number ? a - b : words.compare(a, b));
    });
    return keyed.map(([, row]) => row);
  };

  // A cell that a spreadsheet would run as a formula is led by an apostrophe.
  const quoted = (text) =>
    `"${(/^[=+\-@\t\r]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;

  const written = (cell) =>
    cell.dataset.v !== undefined && cell.classList.contains("number")
      ? cell.dataset.v
      : quoted(cell.dataset.v ?? cell.textContent);

  const prepare = (box) => {
    const body = box.querySelector("tbody");
    const heads = [...box.querySelectorAll("th")];
    const filter = box.querySelector('input[type="search"]');
    const more = box.querySelector(".table-more");
    const original = [...body.rows];
    const texts = new Map(original.map((row) => [row, row.textContent.toLowerCase()]));
    const limit = Number(box.dataset.shown);
    let order = original;
    let all = false;

    const matching = () => {
      const wanted = filter?.value.trim().toLowerCase() ?? "";
      return wanted ? order.filter((row) => texts.get(row).includes(wanted)) : order;
    };

    const show = () => {
      const rows = matching();
      const visible = new Set(all ? rows : rows.slice(0, limit));
      body.append(...order);
      for (const row of original) row.hidden = !visible.has(row);
      if (!more) return;
      const rest = rows.length - visible.size;
      const label = more.querySelector("span");
      more.hidden = rest === 0 && rows.length > 0;
      more.querySelector("button").hidden = rest === 0;
      label.textContent = rows.length
        ? `${rest.toLocaleString("en")} row${rest === 1 ? "" : "s"} more`
        : "No row has this.";
    };

    const sort = (head) => {
      const number = head.classList.contains("number");
      const steps = number ? ["descending", "ascending", "none"] : ["ascending", "descending", "none"];
      const next = steps[(steps.indexOf(head.getAttribute("aria-sort")) + 1) % 3];
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", next);
      const direction = next === "ascending" ? 1 : -1;
      order =
        next === "none" ? original : ordered(original, heads.indexOf(head), number, direction);
      show();
    };

    const csv = () => {
      const lines = [heads.map((head) => quoted(head.dataset.name)).join(",")];
      for (const row of matching()) lines.push([...row.cells].map(written).join(","));
      stepscope.save(box.dataset.file, "text/csv", lines.join("\r\n") + "\r\n");
    };

    for (const cell of box.querySelectorAll("td[data-share]"))
      cell.style.setProperty("--share", Math.min(1, Math.max(0, Number(cell.dataset.v))));
    filter?.addEventListener("input", show);
    box.addEventListener("click", (event) => {
      event.target.closest(".very")?.classList.toggle("open");
      const button = event.target.closest("button");
      if (!button) return;
      if (button.parentElement.tagName === "TH") sort(button.parentElement);
      if (button.dataset.act === "csv") csv();
      if (button.dataset.act === "all") {
        all = true;
        box.classList.add("whole");
        show();
      }
    });
  };

  for (const box of document.querySelectorAll(".table")) prepare(box);
})();
