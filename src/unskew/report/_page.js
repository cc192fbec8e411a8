
"use strict";
(() => {
  function compare(a, b, at, direction) {
    const [x, y] = [a, b].map((row) => row.cells[at].dataset.key);
    if (x === "" || y === "") return (x === "") - (y === "");
    const numeric = a.cells[at].classList.contains("number");
    return direction * (numeric ? x - y : x.localeCompare(y, "en"));
  }

  function sortable(table) {
    const body = table.tBodies[0];
    const original = [...body.rows];
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
  }
  document.querySelectorAll("table.sortable").forEach(sortable);

  function draw(name, attributes) {
    const node = document.createElementNS(document.documentElement.querySelector("svg").namespaceURI, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  }

  // Beside the place where there is room, else below the picture.
  function put(tip, svg, x, y) {
    tip.hidden = false;
    const box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    const [right, left] = [x * scale + 14, x * scale - 14 - tip.offsetWidth];
    const beside = right + tip.offsetWidth <= box.width ? right : left;
    tip.style.left = `${Math.max(0, beside)}px`;
    tip.style.top = `${beside < 0 ? box.height : y * scale}px`;
  }

  // Shown under the pointer and by arrow keys; find says which of count things is nearest.
  function interactive(svg, start, count, find, show, hide) {
    let at = start;
    const move = (index) => show(at = Math.min(Math.max(index, 0), count - 1));
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / box.width;
      move(find((event.clientX - box.left) * scale, (event.clientY - box.top) * scale));
    });
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("focus", () => { if (svg.matches(":focus-visible")) move(at); });
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", (event) => {
      const steps = {
        ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - 1, ArrowDown: at + 1,
        Home: 0, End: count - 1,
      };
      if (event.key === "Escape") hide();
      if (!(event.key in steps)) return;
      event.preventDefault();
      move(steps[event.key]);
    });
  }

  const nearest = (distances) => distances.indexOf(Math.min(...distances));

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

    function show(at) {
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
      put(tip, svg, x(round), place.top);
    }

    function hide() {
      tip.hidden = true;
      cursor.replaceChildren();
    }

    const find = (across) => nearest(rows.map(({ round }) => Math.abs(x(round) - across)));
    interactive(svg, rows.length - 1, rows.length, find, show, hide);
  }
  document.querySelectorAll("figure.chart:not(.dots)").forEach(chart);

  function points(figure) {
    const svg = figure.querySelector(".plot > svg");
    const tip = figure.querySelector(".tip");
    const cursor = svg.querySelector(".cursor");
    const legend = [...figure.querySelectorAll(".legend li")];
    const dots = [...svg.querySelectorAll(".dot")].map(({ dataset }) => ({
      x: Number(dataset.x), y: Number(dataset.y), line: legend[dataset.line], told: dataset.told,
    }));
    if (!dots.length) return;

    function show(at) {
      const { x, y, line, told } = dots[at];
      cursor.replaceChildren(draw("circle", { cx: x, cy: y, r: 8 }));
      const head = document.createElement("p");
      head.append(line.querySelector("svg").cloneNode(true), line.textContent);
      const said = document.createElement("p");
      said.append(told);
      tip.replaceChildren(head, said);
      put(tip, svg, x, y);
    }

    function hide() {
      tip.hidden = true;
      cursor.replaceChildren();
    }

    const find = (x, y) => nearest(dots.map((dot) => Math.hypot(dot.x - x, dot.y - y)));
    interactive(svg, 0, dots.length, find, show, hide);
  }
  document.querySelectorAll("figure.dots").forEach(points);

  const folded = [...document.querySelectorAll("details.run:not(.group details)")].filter((each) => !each.open);
  addEventListener("beforeprint", () => folded.forEach((each) => { each.open = true; }));
  addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));
})();
