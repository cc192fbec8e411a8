
"use strict";
(() => {
  const table = document.querySelector("table.runs");
  const body = table.tBodies[0];
  const original = [...body.rows];

  function compare(a, b, at, direction) {
    const [x, y] = [a, b].map((row) => row.cells[at].dataset.key);
    if (x === "" || y === "") return (x === "") - (y === "");
    const numeric = a.cells[at].classList.contains("number");
    return direction * (numeric ? x - y : x.localeCompare(y, "en"));
  }

  for (const button of table.querySelectorAll("thead button")) {
    button.addEventListener("click", () => {
      const head = button.parentElement;
      const before = head.getAttribute("aria-sort");
      const other = before === "ascending" ? "descending" : "ascending";
      const order = before ? other : button.dataset.first;
      for (const each of head.parentElement.cells) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order);
      const direction = order === "ascending" ? 1 : -1;
      body.append(...[...original].sort((a, b) => compare(a, b, head.cellIndex, direction)));
      document.getElementById("sorted").textContent =
        `Sorted by ${button.textContent}, ${order}.`;
    });
  }

  function draw(name, attributes) {
    const node = document.createElementNS(document.documentElement.querySelector("svg").namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  }

  function chart(figure) {
    const svg = figure.querySelector(".plot > svg");
    if (!svg) return;
    const tip = figure.querySelector(".tip");
    const cursor = svg.querySelector(".cursor");
    const legend = [...figure.querySelectorAll(".legend li")];
    const rows = [...figure.querySelectorAll(".values tbody tr")].map((row) => ({
      round: Number(row.cells[0].textContent),
      cells: [...row.cells].slice(1),
    }));
    const place = Object.fromEntries(Object.entries(svg.dataset).map(([k, v]) => [k, Number(v)]));
    const x = (round) => place.last === place.first ? place.left
      : place.left + (round - place.first) / (place.last - place.first) * (place.right - place.left);
    const y = (value) => place.zero + value / place.max * (place.top - place.zero);
    let at = rows.length - 1;

    function show(index) {
      at = Math.min(Math.max(index, 0), rows.length - 1);
      const { round, cells } = rows[at];
      cursor.replaceChildren(draw("path", { d: `M${x(round)} ${place.top}V${place.zero}` }));
      const head = document.createElement("p");
      head.append(`Round ${round}`);
      tip.replaceChildren(head);
      const known = cells.map((cell, i) => ({ cell, line: legend[i], value: Number(cell.dataset.key) }))
        .filter(({ cell }) => cell.dataset.key !== "")
        .sort((a, b) => b.value - a.value);
      for (const { cell, line, value } of known) {
        cursor.append(draw("circle", { cx: x(round), cy: y(value), r: 5.5 }));
        const row = document.createElement("p");
        const figure = document.createElement("b");
        figure.append(cell.textContent);
        row.append(line.querySelector("svg").cloneNode(true), line.textContent, figure);
        tip.append(row);
      }
      tip.hidden = false;
      const box = svg.getBoundingClientRect();
      const across = x(round) / svg.viewBox.baseVal.width * box.width;
      const [right, left] = [across + 14, across - 14 - tip.offsetWidth];
      const beside = right + tip.offsetWidth <= box.width ? right : left;
      // Beside the cursor where there is room, else below the picture.
      tip.style.left = `${Math.max(0, beside)}px`;
      tip.style.top = `${(beside < 0 ? 1 : place.top / svg.viewBox.baseVal.height) * box.height}px`;
    }

    function hide() {
      tip.hidden = true;
      cursor.replaceChildren();
    }

    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const across = (event.clientX - box.left) / box.width * svg.viewBox.baseVal.width;
      const far = rows.map(({ round }) => Math.abs(x(round) - across));
      show(far.indexOf(Math.min(...far)));
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) show(at); });
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: rows.length - 1 };
      if (event.key === "Escape") hide();
      if (!(event.key in steps)) return;
      event.preventDefault();
      show(steps[event.key]);
    });
  }
  document.querySelectorAll("figure.chart").forEach(chart);

  const folded = [...document.querySelectorAll("details.run")].filter((each) => !each.open);
  addEventListener("beforeprint", () => folded.forEach((each) => { each.open = true; }));
  addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));
})();
