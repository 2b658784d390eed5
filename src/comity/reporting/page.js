// Draws the charts when they come into view, applies the checkboxes and the URL, sorts tables, and
// offers the data for download.
(() => {
  "use strict";
  const page = JSON.parse(document.getElementById("comity").textContent);
  const root = document.documentElement;
  const views = new Map();  // chart id -> its Vega view, if it is drawn
  const ticked = new Map();  // chart id -> whether each of its options is on
  const shown = {};  // group -> methods whose boxes are ticked
  const rowsOf = {};
  const narrow = matchMedia("(max-width: 500px)");

  function rows(name) {
    if (!rowsOf[name]) {
      const table = page.data[name];
      const names = Object.keys(table);
      const word = (column, k) => k < 0 ? null : column.words[k];
      const unpack = column => column.words ? column.at.map(k => word(column, k)) : column;
      const columns = names.map(n => unpack(table[n]));
      const length = columns.length ? columns[0].length : 0;
      const row = i => Object.fromEntries(names.map((n, k) => [n, columns[k][i]]));
      rowsOf[name] = Array.from({ length }, (_, i) => row(i));
    }
    return rowsOf[name];
  }

  function applyTheme(part, theme) {
    if (typeof part === "string") return theme[part] ?? part;
    if (Array.isArray(part)) return part.map(p => applyTheme(p, theme));
    if (part && typeof part === "object") {
      return Object.fromEntries(Object.entries(part).map(([k, v]) => [k, applyTheme(v, theme)]));
    }
    return part;
  }

  function halveLegends(part) {
    if (Array.isArray(part)) part.forEach(halveLegends);
    else if (part && typeof part === "object") {
      if (part.legend?.columns) part.legend.columns = Math.ceil(part.legend.columns / 2);
      Object.values(part).forEach(halveLegends);
    }
  }

  // Labels below an axis are horizontal only where there is room for them.
  function turnLabels(part, room) {
    if (Array.isArray(part)) part.forEach(item => turnLabels(item, room));
    else if (part && typeof part === "object") {
      if (part.type === "nominal" && part.axis && "labelAngle" in part.axis) {
        const labelRoom = room / part.sort.length;
        const longest = Math.max(...part.sort.map(name => name.length));
        const angle = 7 * longest + 6 < labelRoom ? 0 : labelRoom > 22 ? -40 : -90;
        Object.assign(part.axis, { labelAngle: angle, labelOverlap: angle === -90 });
      }
      Object.values(part).forEach(item => turnLabels(item, room));
    }
  }

  function setAt(spec, path, value) {
    path.slice(0, -1).reduce((part, step) => part[step], spec)[path.at(-1)] = value;
  }

  async function draw(id) {
    const chart = page.charts[id], place = document.getElementById(id);
    const spec = structuredClone(chart.spec);
    chart.options.forEach((option, k) => {
      for (const [path, on, off] of option.sets) setAt(spec, path, ticked.get(id)[k] ? on : off);
    });
    if (narrow.matches) halveLegends(spec);
    turnLabels(spec, place.clientWidth - 130);
    const methods = (spec.params ?? []).find(p => p.name === "shown");
    if (methods) methods.value = shown[chart.group] ?? methods.value;
    const theme = page.themes[root.dataset.theme];
    const complete = applyTheme({
      $schema: "https://vega.github.io/schema/vega-lite/v6.json",
      width: "container",
      autosize: { type: "fit-x", contains: "padding" },
      ...spec,
      description: chart.alt,
    }, theme);
    complete.data = { values: rows(chart.data) };
    views.get(id)?.finalize();
    const result = await vegaEmbed(place, complete, {
      actions: false,
      renderer: "svg",
      logLevel: 1,
      config: applyTheme(page.config, theme),
      tooltip: { theme: "custom" },
    });
    // Vega calls a container without marks a symbol, which would need a name of its own.
    const symbols = "[role=graphics-symbol][aria-roledescription$=container]";
    for (const empty of place.querySelectorAll(symbols)) empty.setAttribute("role", "graphics-object");
    views.set(id, result);
    place.dataset.drawn = "yes";
    return result;
  }

  const hidden = id => document.getElementById(id).closest("[hidden], details:not([open])");
  let last = Promise.resolve();
  function fail(id, why) {
    document.getElementById(id).textContent = "This chart cannot be drawn: " + why.message;
    console.error(why);
  }
  // Draws charts one after the other.
  function enqueue(id) {
    last = last.then(() => hidden(id) ? forget(id) : draw(id)).catch(why => fail(id, why));
    return last;
  }
  const redraw = ids => Promise.all(ids.map(enqueue));

  // A hidden chart has no width, so it is drawn again when it comes into view.
  function forget(id) {
    views.get(id)?.finalize();
    views.delete(id);
    observer.observe(document.getElementById(id));
  }

  function setTheme(name) {
    root.dataset.theme = name;
    for (const swatch of document.querySelectorAll(".swatch")) {
      swatch.style.background = page.themes[name][swatch.dataset.colour];
    }
    return redraw([...views.keys()]);
  }

  const observer = new IntersectionObserver(entries => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      if (!views.has(target.id)) enqueue(target.id);
    }
  }, { rootMargin: "600px" });

  function csv(name) {
    const table = rows(name), heads = Object.keys(page.data[name]);
    const quote = v => /[",\r\n]/.test(v) ? `"${String(v).replaceAll('"', '""')}"` : String(v);
    const cell = v => v === null || v === undefined ? "" : quote(v);
    const lines = [heads, ...table.map(row => heads.map(h => row[h]))];
    return lines.map(line => line.map(cell).join(",")).join("\n") + "\n";
  }

  function save(name, body, kind) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([body], { type: kind }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  const button = (text, label, onClick) => {
    const element = document.createElement("button");
    element.type = "button";
    element.textContent = text;
    if (label) element.ariaLabel = label;
    element.addEventListener("click", onClick);
    return element;
  };

  for (const [id, chart] of Object.entries(page.charts)) {
    ticked.set(id, chart.options.map(option => option.ticked));
    const tools = document.getElementById(id).closest("figure").querySelector(".tools");
    chart.options.forEach((option, k) => {
      const label = document.createElement("label"), box = document.createElement("input");
      box.type = "checkbox"; box.checked = option.ticked;
      box.addEventListener("change", () => { ticked.get(id)[k] = box.checked; enqueue(id); });
      label.append(box, option.label);
      tools.append(label);
    });
    const gap = document.createElement("span");
    gap.className = "gap";
    const files = document.createElement("span");
    files.className = "save";
    tools.append(gap, files);
    const saveData = () => save(`${chart.data}.csv`, csv(chart.data), "text/csv");
    const saveImage = async () => {
      const result = await draw(id);
      save(`${chart.name}.svg`, await result.view.toSVG(), "image/svg+xml");
    };
    files.append(
      button("csv", `${chart.title}: its data as csv`, saveData),
      " ",
      button("svg", `${chart.title}: as svg`, saveImage),
    );
  }
  for (const name of Object.keys(page.data)) {
    const saveData = () => save(`${name}.csv`, csv(name), "text/csv");
    const download = button(`${name}.csv`, `Download ${name}.csv`, saveData);
    document.getElementById("files").append(download);
  }
  for (const boxes of document.querySelectorAll(".methods")) {
    const all = [...boxes.querySelectorAll("input")];
    boxes.addEventListener("change", () => {
      shown[boxes.dataset.group] = all.filter(box => box.checked).map(box => box.value);
      for (const [id, result] of views) {
        const chart = page.charts[id];
        const followsBoxes = (chart.spec.params ?? []).some(p => p.name === "shown");
        if (chart.group === boxes.dataset.group && followsBoxes) {
          result.view.signal("shown", shown[chart.group]).runAsync();
        }
      }
      for (const [id, chart] of Object.entries(page.charts)) {
        if (chart.group === boxes.dataset.group && chart.method) {
          const figure = document.getElementById(id).closest("figure");
          figure.hidden = !shown[chart.group].includes(chart.method);
        }
      }
      [...views.keys()].filter(hidden).forEach(forget);
    });
  }
  // The URL's fragment names a setting, a section of it, or both. The page
  // shows it, opens it, and scrolls to it.
  const choice = document.getElementById("group");
  function goToFragment() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const setting = target ? target.closest(".group") : document.querySelector(".group");
    if (choice && setting) {
      choice.value = setting.id;
      for (const group of document.querySelectorAll(".group")) group.hidden = group !== setting;
    }
    [...views.keys()].filter(hidden).forEach(forget);
    if (target?.dataset.part) {
      for (const folded of target.querySelectorAll(":scope > details")) folded.open = true;
      target.scrollIntoView();
    }
  }
  // A change of the setting keeps the section that is being read.
  choice?.addEventListener("change", () => {
    const sections = [...document.querySelectorAll(".group:not([hidden]) section")];
    const above = sections.filter(s => s.getBoundingClientRect().top < innerHeight / 3);
    const part = above.length > 1 ? "/" + above.at(-1).dataset.part : "";
    history.pushState(null, "", "#" + choice.value + part);
    goToFragment();
  });
  addEventListener("popstate", goToFragment);
  goToFragment();

  // A click on a table's head sorts by its column, the next click sorts in the other direction, and
  // the third restores the original order.
  const UNITS = { "%": 1, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, s: 1, min: 60, h: 3600 };
  const WORDS = { never: Infinity, infinite: Infinity, equal: 0 };
  const FIGURE = new RegExp(
    "^([+−-]?)((?:\\d[\\d,]*)?\\.?\\d+(?:e[+-]?\\d+)?)" +  // sign and number
    "(?:\\/(\\d+))?" +  // "of how many", as in 3/4
    "(?:\\s*(%|B|kB|MB|GB|s|min|h)(?!\\w))?",  // unit
  );
  function parseFigure(text) {
    // A target that some seeds did not reach comes after all numbers and before "never".
    if (/^\d+ of \d+ seeds$/.test(text)) return Number.MAX_VALUE;
    const match = FIGURE.exec(text);
    if (!match) return WORDS[text] ?? NaN;
    const [, sign, number, count, unit] = match;
    const value = Number(number.replaceAll(",", "")) / Number(count ?? 1) * (UNITS[unit] ?? 1);
    return sign && sign !== "+" ? -value : value;
  }
  const collator = new Intl.Collator("en", { numeric: true });
  // Cells without a value come last in both directions.
  function sortRows(rows, k, figures, direction) {
    const keyOf = text => figures ? parseFigure(text) : text;
    const keyed = rows.map(row => ({ row, key: keyOf(row.cells[k].textContent) }));
    const isEmpty = ({ key }) => key === "" || Number.isNaN(key);
    const compareFigures = (a, b) => a.key === b.key ? 0 : a.key - b.key;
    const compareWords = (a, b) => collator.compare(a.key, b.key);
    const compare = figures ? compareFigures : compareWords;
    const sorted = keyed.filter(item => !isEmpty(item))
      .sort((a, b) => direction === "ascending" ? compare(a, b) : compare(b, a));
    return [...sorted, ...keyed.filter(isEmpty)].map(item => item.row);
  }
  for (const table of document.querySelectorAll("main table")) {
    const body = table.tBodies[0];
    const original = [...body.rows], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, k) => {
      const text = head.textContent, figures = head.classList.contains("figure");
      const directions = figures ? ["descending", "ascending"] : ["ascending", "descending"];
      head.ariaSort = "none";
      head.replaceChildren(button(text, "", () => {
        const direction = [...directions, "none"][directions.indexOf(head.ariaSort) + 1];
        for (const other of heads) other.ariaSort = other === head ? direction : "none";
        const rows = direction === "none" ? original : sortRows(original, k, figures, direction);
        body.append(...rows);
      }));
    });
    if (table.querySelector(".minor")) {
      table.classList.add("brief");
      const more = button("all columns", "", () => {
        more.ariaExpanded = String(!table.classList.toggle("brief"));
        more.textContent = table.classList.contains("brief") ? "all columns" : "fewer columns";
      });
      more.className = "more";
      more.ariaExpanded = "false";
      table.closest(".scroll").after(more);
    }
  }

  narrow.addEventListener("change", () => redraw([...views.keys()]));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
  });

  for (const id of Object.keys(page.charts)) observer.observe(document.getElementById(id));

  // Draws all charts that are neither hidden nor folded, for printing and for tests.
  window.drawEverything = async () => {
    await redraw(Object.keys(page.charts).filter(id => !views.has(id) && !hidden(id)));
    return views.size;
  };
  let before, closed;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const folded of closed) folded.open = true;
    setTheme("light");
    window.drawEverything();
  });
  addEventListener("afterprint", () => {
    for (const folded of closed) folded.open = false;
    setTheme(before);
  });
})();
