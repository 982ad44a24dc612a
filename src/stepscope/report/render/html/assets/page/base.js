"use strict";
// What the page's other scripts share.
const stepscope = (() => {
  /** The bytes that an element of the page holds packed (gzip, base64). */
  const unpacked = async (id) => {
    const packed = atob(document.getElementById(id).textContent);
    const bytes = new Uint8Array(packed.length);
    for (let at = 0; at < packed.length; at++) bytes[at] = packed.charCodeAt(at);
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  };

  /** A colour of the theme as the browser resolves it now. */
  const colour = (variable) =>
    getComputedStyle(document.documentElement).getPropertyValue(variable).trim();

  /** Give the reader a file made here. */
  const save = (name, type, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };

  /** After what is pending has been painted. */
  const painted = () =>
    new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve, 0)));

  return { unpacked, colour, save, painted };
})();
