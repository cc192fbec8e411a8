
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

  const folded = [...document.querySelectorAll("details.run:not(.group details)")].filter((each) => !each.open);
  addEventListener("beforeprint", () => folded.forEach((each) => { each.open = true; }));
  addEventListener("afterprint", () => folded.forEach((each) => { each.open = false; }));
})();
