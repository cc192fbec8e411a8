
(async () => {
  const $ = (id) => document.getElementById(id);
  const model = JSON.parse($("model").textContent);
  const titles = model.titles || model.labels;

  const MAX_HITS = 40;
  const MAX_ROWS = 60; // of the picture
  let history = [];
  const popular = [...model.users.keys()].sort((a, b) => model.users[b] - model.users[a] || a - b);
  const plain = (text) => text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
  const searched = titles.map(plain);
  const count = (number, word, many = `${word}s`) => `${number.toLocaleString("en")} ${number === 1 ? word : many}`;

  function element(name, text, properties = {}) {
    const made = Object.assign(document.createElement(name), properties);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  const named = (item) => element("bdi", titles[item]);

  function button(sign, label, action, key) {
    const made = element("button", sign, { type: "button", title: label });
    made.setAttribute("aria-label", label);
    made.dataset.key = key;
    made.addEventListener("click", action);
    return made;
  }

  function change(next) {
    const key = document.activeElement.dataset && document.activeElement.dataset.key;
    history = next;
    update();
    const again = key && [...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === key);
    if (again) again.focus();
    else if (key && document.activeElement === document.body) $("query").focus();
  }
  const add = (item) => change([...history.filter((each) => each !== item), item]);
  const remove = (item) => change(history.filter((each) => each !== item));

  function move(item, step) {
    const from = history.indexOf(item);
    const to = from + step;
    if (to < 0 || to >= history.length) return;
    const next = [...history];
    [next[from], next[to]] = [next[to], next[from]];
    change(next);
  }

  /** Reorder by dragging: the dragged row stays in the document, its neighbours step aside. */
  function drag(event) {
    const row = event.currentTarget.closest("li");
    const middle = (each) => { const box = each.getBoundingClientRect(); return box.top + box.height / 2; };
    const follow = (at) => {
      const [before, after] = [row.previousElementSibling, row.nextElementSibling];
      if (before && at.clientY < middle(before)) row.after(before);
      else if (after && at.clientY > middle(after)) row.before(after);
    };
    const drop = () => {
      document.removeEventListener("pointermove", follow);
      for (const end of ["pointerup", "pointercancel"]) document.removeEventListener(end, drop);
      change([...$("list").children].map((each) => Number(each.dataset.item)));
    };
    event.preventDefault();
    row.classList.add("dragged");
    document.addEventListener("pointermove", follow);
    for (const end of ["pointerup", "pointercancel"]) document.addEventListener(end, drop);
  }

  function showHits() {
    const words = plain($("query").value).split(/\s+/).filter(Boolean);
    const fits = (item) => words.every((word) => searched[item].includes(word));
    const found = words.length ? popular.filter(fits) : popular;
    $("found").textContent = words.length
      ? `${count(found.length, "title")} found${found.length > MAX_HITS ? `, the first ${MAX_HITS} shown` : ""}.`
      : `The most popular of ${count(titles.length, "title")}.`;
    $("hits").replaceChildren(...found.slice(0, MAX_HITS).map((item) => {
      const box = element("input", undefined, { type: "checkbox", checked: history.includes(item) });
      box.dataset.item = item;
      box.addEventListener("change", () => (box.checked ? add(item) : remove(item)));
      const label = element("label");
      label.append(box, named(item));
      const row = element("li");
      row.append(label);
      return row;
    }));
  }

  function showList() {
    $("order").textContent = !history.length ? "Nothing yet: tick a title, or add one that is recommended."
      : model.order ? "Oldest first: what comes last counts most. Drag, or use the arrows."
        : "The order doesn't count for this method.";
    $("clear").hidden = !history.length;
    $("list").replaceChildren(...history.map((item, at) => {
      const row = element("li");
      row.dataset.item = item;
      const grip = element("span", "⠿", { className: "grip" });
      grip.setAttribute("aria-hidden", "true");
      grip.addEventListener("pointerdown", drag);
      const up = button("↑", `Move up: ${titles[item]}`, () => move(item, -1), `up ${item}`);
      const down = button("↓", `Move down: ${titles[item]}`, () => move(item, 1), `down ${item}`);
      up.setAttribute("aria-disabled", at === 0);
      down.setAttribute("aria-disabled", at === history.length - 1);
      row.append(grip, named(item), up, down, button("✕", `Remove: ${titles[item]}`, () => remove(item), `out ${item}`));
      return row;
    }));
    for (const box of $("hits").querySelectorAll("input")) box.checked = history.includes(Number(box.dataset.item));
  }

  function showBest() {
    const start = performance.now();
    let found = device.best(history, model.k);
    const took = performance.now() - start;
    if (!history.length && found.length && found[0].score === found.at(-1).score) found = [];
    const listed = `${count(found.length, "title")}, computed here in ${Math.max(1, Math.round(took))} ms`;
    $("took").textContent = history.length ? `${listed}. The number is the model's score.`
      : found.length ? `${listed} from an empty list: what suits most people.`
        : "An empty list says nothing to this method: tick a title.";
    $("recommended").replaceChildren(...found.map(({ item, score }) => {
      const row = element("li");
      row.dataset.item = item;
      row.append(named(item), element("span", score.toPrecision(3), { className: "number" }),
        button("Add", `Add to your list: ${titles[item]}`, () => add(item), `add ${item}`));
      return row;
    }));
  }

  /** A picture of the upload: a line per row, blue above zero, orange below. */
  function draw(rows) {
    const canvas = $("picture").querySelector("canvas");
    const shown = rows.slice(0, MAX_ROWS);
    const style = getComputedStyle(document.documentElement);
    // The last number of a row belongs to the constant feature and would outshine the others.
    const largest = Math.max(...shown.map((row) => Math.max(...row.slice(0, -1).map(Math.abs)))) || 1;
    Object.assign(canvas, { width: rows[0].length, height: shown.length });
    canvas.style.height = `${Math.min(16, Math.max(4, 240 / shown.length)) * shown.length}px`;
    const pen = canvas.getContext("2d");
    shown.forEach((row, y) => row.forEach((value, x) => {
      pen.globalAlpha = Math.min(1, Math.sqrt(Math.abs(value) / largest));
      pen.fillStyle = style.getPropertyValue(value < 0 ? "--minus" : "--plus");
      pen.fillRect(x, y, 1, 1);
    }));
    const text = `One line per row of the upload${rows.length > MAX_ROWS ? `, the first ${MAX_ROWS}` : ""}: ` +
      `${rows[0].length} numbers each, blue above zero and orange below.`;
    canvas.setAttribute("aria-label", text);
    $("picture").querySelector("figcaption").textContent = text;
    $("picture").querySelector("tbody").replaceChildren(...shown.map((row, at) => {
      const line = element("tr");
      const head = element("th", undefined, { scope: "row" });
      head.append(named(history[at]));
      line.append(head, element("td", row.slice(0, 5).map((v) => v.toFixed(4)).join("  ") + " …", { className: "text" }));
      return line;
    }));
  }

  function showSizes(sizes) {
    $("sizes").replaceChildren(...sizes.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
  }
  const kilobytes = (bytes) => (bytes < 1000 ? count(bytes, "byte") : `${(bytes / 1000).toFixed(1)} KB`);
  const chips = (items) => items.slice(0, MAX_HITS).map((item) => {
    const chip = element("li");
    chip.append(named(item));
    return chip;
  });

  function showUpload() {
    const known = model.arrays.some(([name]) => name === "U") && !(model.networkFollows && model.horizon === null);
    const shown = model.federated && known && history.length > 0;
    $("federated").hidden = !model.federated;
    $("later").hidden = !(shown && model.networkFollows);
    $("picture").hidden = $("summed").hidden = !shown;
    $("attacks").hidden = !history.length || (model.federated && !known);
    $("sent").textContent = `Nothing leaves this page. ${whatIsSent(known)}`;
    showSizes([]);
    if (!history.length) return;
    $("read").replaceChildren(...chips(history));
    $("alone").textContent = model.federated
      ? `Each row carries its item's number. So the server reads ${history.length === 1 ? "your item" : `all of your ${count(history.length, "item")}`}:`
      : "The server reads all of your list:";
    if (!model.federated) {
      showSizes([["Items sent", history.length.toLocaleString("en")], ["Size", kilobytes(4 * history.length)]]);
    } else if (known) {
      const { rows, dense } = device.upload(history);
      const width = rows[0].length;
      showSizes([
        ["A row for each item", `${count(rows.length, "row")} of ${count(width, "number")}`],
        ["A block about the whole list", dense ? count(dense, "number") : "none in this round"],
        ["Size", kilobytes(rows.length * (4 + 4 * width) + 4 * dense + 8)],
        ["Size in training", `${kilobytes(Math.round(model.bytesUp))} per device and round on average`],
      ]);
      draw(rows);
      showGuess();
    }
  }

  /** What a device with this list would send, in a sentence or two. */
  function whatIsSent(known) {
    const method = model.method;
    if (!model.federated) {
      return `But ${method} isn't federated: to help train it, your device would have to send the whole list.`;
    }
    if (!known) return `This page cannot compute what a device sends in a round of ${method}.`;
    if (!history.length) return "Tick a title to see what a device with your list would send.";
    const noise = model.noise ? ", with random noise added" : "";
    return `If this device helped to train ${method}, it would send the following in one of the rounds${noise}, and nothing else:`;
  }

  function showGuess() {
    const devices = Number($("devices").value);
    const guessed = device.guess(history, devices);
    const right = guessed.filter((item) => history.includes(item)).length;
    $("guess").textContent = `With secure aggregation, the server gets the sum over ${count(devices, "device")}, ` +
      "but no device's own numbers. The titles that most devices share are then its best guess at your list; " +
      `here ${right} of ${guessed.length} would be right${right ? " (outlined)" : ""}:`;
    $("guessed").replaceChildren(...chips(guessed));
    [...$("guessed").children].forEach((chip, at) => chip.classList.toggle("guessed", history.includes(guessed[at])));
  }

  function update() {
    showList();
    showBest();
    showUpload();
  }

  let device;
  try {
    device = await openModel(model, $("tables").textContent);
  } catch (error) {
    $("took").textContent = `The model cannot be read (${error}); the page needs a browser of 2023 or later.`;
    return;
  }
  for (const devices of [2, 10, 100, 1000].filter((each) => each < model.nUsers).concat(model.nUsers)) {
    $("devices").append(element("option", devices.toLocaleString("en"), { value: devices }));
  }
  $("devices").value = model.nUsers;
  $("devices").addEventListener("change", showGuess);
  $("query").addEventListener("input", showHits);
  $("clear").addEventListener("click", () => { change([]); $("query").focus(); });
  showHits();
  update();
  window.unskew = device;
})();
