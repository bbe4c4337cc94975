// Moves the window of the timeline: buttons, and a drag over the overview. Without it the page shows the first window.
(() => {
  const timeline = document.getElementById("timeline");
  if (!timeline) return;
  const { total, start, end, height, label } = timeline.dataset;
  const whole = +total;
  const overview = document.getElementById("overview");
  const svg = timeline.querySelector(".spans"), brush = timeline.querySelector(".brush");
  const lines = timeline.querySelector(".ticks");
  const detail = document.getElementById("detail"), shown = document.getElementById("shown");
  const controls = document.querySelector(".controls");
  let a = +start, b = +end;

  const ticks = () => {
    const rough = (b - a) / 8, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
    const digits = Math.max(0, 3 - Math.floor(Math.log10(step) + 1e-9));
    lines.replaceChildren();
    for (let i = Math.ceil(a / step); i * step <= b; i++) {
      const at = (i * step - a) / (b - a);
      if (at >= 0.9) break;
      const tick = document.createElement("span");
      tick.style.left = `${100 * at}%`;
      tick.textContent = `${((i * step) / 1e3).toFixed(digits)} ms`;
      lines.append(tick);
    }
  };

  const show = (from, to, name) => {
    const width = Math.min(Math.max(to - from, 5), whole);
    a = Math.min(Math.max(from, 0), whole - width);
    b = a + width;
    svg.setAttribute("viewBox", `${a} 0 ${width} ${height}`);
    brush.setAttribute("x", a);
    brush.setAttribute("width", width);
    shown.textContent =
      `Shown: ${name ? `${name}, ` : ""}${(a / 1e3).toFixed(2)} to ${(b / 1e3).toFixed(2)} ms of ${(whole / 1e3).toFixed(2)} ms.`;
    for (const button of controls.querySelectorAll("[data-window]"))
      button.setAttribute("aria-pressed", button.textContent === name);
    ticks();
  };

  controls.addEventListener("click", ({ target }) => {
    const { window: stretch, zoom, move } = target.dataset;
    const half = (b - a) / 2, middle = a + half;
    if (stretch) show(...stretch.split(" ").map(Number), target.textContent);
    if (zoom) show(middle - half * zoom, middle + half * zoom);
    if (move) show(a + (b - a) * move, b + (b - a) * move);
  });

  svg.addEventListener("click", ({ target }) => {
    const title = target.querySelector("title");
    if (title) detail.textContent = title.textContent;
  });

  const time = (event) => {
    const box = overview.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * whole;
  };
  let from = null;
  overview.addEventListener("pointerdown", (event) => {
    from = time(event);
    overview.setPointerCapture(event.pointerId);
  });
  overview.addEventListener("pointermove", (event) => {
    const to = time(event);
    if (from !== null && Math.abs(to - from) > whole / 200) show(Math.min(from, to), Math.max(from, to));
  });
  overview.addEventListener("pointerup", (event) => {
    const at = time(event), half = (b - a) / 2;
    if (from !== null && Math.abs(at - from) <= whole / 200) show(at - half, at + half); // a click moves the window
    from = null;
  });
  overview.addEventListener("pointercancel", () => (from = null));

  controls.hidden = false;
  show(a, b, label);
})();
