// Draws the page's charts (when they come into view), follows the boxes and the address, sorts tables, and hands out the data.
(() => {
  "use strict";
  const page = JSON.parse(document.getElementById("comity").textContent);
  const root = document.documentElement;
  const drawn = new Map();  // chart id -> its view
  const ticked = new Map();  // chart id -> which of its options are on
  const shown = {};  // group -> methods whose boxes are ticked
  const rowsOf = {};
  const narrow = matchMedia("(max-width: 500px)");

  function rows(name) {
    if (!rowsOf[name]) {
      const table = page.data[name];
      const names = Object.keys(table);
      const columns = names.map(n => table[n].words ? table[n].at.map(k => k < 0 ? null : table[n].words[k]) : table[n]);
      const many = columns.length ? columns[0].length : 0;
      rowsOf[name] = Array.from({ length: many }, (_, i) => Object.fromEntries(names.map((n, k) => [n, columns[k][i]])));
    }
    return rowsOf[name];
  }

  function coloured(part, theme) {
    if (typeof part === "string") return theme[part] ?? part;
    if (Array.isArray(part)) return part.map(p => coloured(p, theme));
    if (part && typeof part === "object") return Object.fromEntries(Object.entries(part).map(([k, v]) => [k, coloured(v, theme)]));
    return part;
  }

  function narrowed(part) {
    if (Array.isArray(part)) part.forEach(narrowed);
    else if (part && typeof part === "object") {
      if (part.legend?.columns) part.legend.columns = Math.ceil(part.legend.columns / 2);
      Object.values(part).forEach(narrowed);
    }
  }

  function turned(part, room) {  // names below an axis lie flat only where there is room for them
    if (Array.isArray(part)) part.forEach(one => turned(one, room));
    else if (part && typeof part === "object") {
      if (part.type === "nominal" && part.axis && "labelAngle" in part.axis) {
        const each = room / part.sort.length, longest = Math.max(...part.sort.map(name => name.length));
        const angle = 7 * longest + 6 < each ? 0 : each > 22 ? -40 : -90;
        Object.assign(part.axis, { labelAngle: angle, labelOverlap: angle === -90 });
      }
      Object.values(part).forEach(one => turned(one, room));
    }
  }

  function put(spec, path, value) {
    path.slice(0, -1).reduce((part, step) => part[step], spec)[path.at(-1)] = value;
  }

  async function draw(id) {
    const chart = page.charts[id], place = document.getElementById(id);
    const spec = structuredClone(chart.spec);
    chart.options.forEach((option, k) => {
      for (const [path, on, off] of option.sets) put(spec, path, ticked.get(id)[k] ? on : off);
    });
    if (narrow.matches) narrowed(spec);
    turned(spec, place.clientWidth - 130);
    const follows = (spec.params ?? []).find(p => p.name === "shown");
    if (follows) follows.value = shown[chart.group] ?? follows.value;
    const theme = page.themes[root.dataset.theme];
    const made = coloured({ $schema: "https://vega.github.io/schema/vega-lite/v6.json", width: "container",
      autosize: { type: "fit-x", contains: "padding" }, ...spec, description: chart.alt }, theme);
    made.data = { values: rows(chart.data) };
    drawn.get(id)?.finalize();
    const result = await vegaEmbed(place, made, { actions: false, renderer: "svg", logLevel: 1, config: coloured(page.config, theme),
      tooltip: { theme: "custom" } });
    drawn.set(id, result);
    place.dataset.drawn = "yes";
    return result;
  }

  const hidden = id => document.getElementById(id).closest("[hidden], details:not([open])");
  let last = Promise.resolve();
  const soon = id => last = last.then(() => hidden(id) ? forget(id) : draw(id)).catch(why => { document.getElementById(id).textContent = "This chart cannot be drawn: " + why.message; console.error(why); });
  const redraw = ids => Promise.all(ids.map(soon));

  function forget(id) {  // until it is seen again: what is hidden has no width to be drawn in
    drawn.get(id)?.finalize();
    drawn.delete(id);
    watcher.observe(document.getElementById(id));
  }

  function theme(name) {
    root.dataset.theme = name;
    for (const swatch of document.querySelectorAll(".swatch")) swatch.style.background = page.themes[name][swatch.dataset.colour];
    return redraw([...drawn.keys()]);
  }

  const watcher = new IntersectionObserver(seen => {
    for (const one of seen) if (one.isIntersecting) { watcher.unobserve(one.target); if (!drawn.has(one.target.id)) soon(one.target.id); }
  }, { rootMargin: "600px" });

  function csv(name) {
    const table = rows(name), heads = Object.keys(page.data[name]);
    const cell = v => v === null || v === undefined ? "" : /[",\r\n]/.test(v) ? `"${String(v).replaceAll('"', '""')}"` : String(v);
    return [heads, ...table.map(row => heads.map(h => row[h]))].map(line => line.map(cell).join(",")).join("\n") + "\n";
  }

  function save(name, body, kind) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([body], { type: kind }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  const button = (text, label, act) => {
    const made = document.createElement("button");
    made.type = "button"; made.textContent = text;
    if (label) made.ariaLabel = label;
    made.addEventListener("click", act);
    return made;
  };

  for (const [id, chart] of Object.entries(page.charts)) {
    ticked.set(id, chart.options.map(option => option.ticked));
    const tools = document.getElementById(id).closest("figure").querySelector(".tools");
    chart.options.forEach((option, k) => {
      const label = document.createElement("label"), box = document.createElement("input");
      box.type = "checkbox"; box.checked = option.ticked;
      box.addEventListener("change", () => { ticked.get(id)[k] = box.checked; soon(id); });
      label.append(box, option.label);
      tools.append(label);
    });
    const gap = document.createElement("span");
    gap.className = "gap";
    const files = document.createElement("span");
    files.className = "save";
    tools.append(gap, files);
    files.append(button("csv", `${chart.title}: its data as csv`, () => save(`${chart.data}.csv`, csv(chart.data), "text/csv")));
    files.append(" ", button("svg", `${chart.title}: as svg`, async () => save(`${chart.name}.svg`, await (await draw(id)).view.toSVG(), "image/svg+xml")));
  }
  for (const name of Object.keys(page.data)) {
    document.getElementById("files").append(button(`${name}.csv`, `Download ${name}.csv`, () => save(`${name}.csv`, csv(name), "text/csv")));
  }
  for (const boxes of document.querySelectorAll(".methods")) {
    const all = [...boxes.querySelectorAll("input")];
    boxes.addEventListener("change", () => {
      shown[boxes.dataset.group] = all.filter(box => box.checked).map(box => box.value);
      for (const [id, result] of drawn) {
        const chart = page.charts[id];
        if (chart.group === boxes.dataset.group && (chart.spec.params ?? []).some(p => p.name === "shown")) {
          result.view.signal("shown", shown[chart.group]).runAsync();
        }
      }
      for (const [id, chart] of Object.entries(page.charts)) {
        if (chart.group === boxes.dataset.group && chart.method) {
          document.getElementById(id).closest("figure").hidden = !shown[chart.group].includes(chart.method);
        }
      }
      [...drawn.keys()].filter(hidden).forEach(forget);
    });
  }
  // The address names a setting, a part of it, or both: what it names is shown, opened and scrolled to.
  const choice = document.getElementById("group");
  function go() {
    const there = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const setting = there ? there.closest(".group") : document.querySelector(".group");
    if (choice && setting) {
      choice.value = setting.id;
      for (const group of document.querySelectorAll(".group")) group.hidden = group !== setting;
    }
    [...drawn.keys()].filter(hidden).forEach(forget);
    if (there?.dataset.part) {
      for (const folded of there.querySelectorAll(":scope > details")) folded.open = true;
      there.scrollIntoView();
    }
  }
  choice?.addEventListener("change", () => {  // the part that is being read stays, in the other setting
    const above = [...document.querySelectorAll(".group:not([hidden]) section")].filter(s => s.getBoundingClientRect().top < innerHeight / 3);
    const part = above.length > 1 ? "/" + above.at(-1).dataset.part : "";
    history.pushState(null, "", "#" + choice.value + part);
    go();
  });
  addEventListener("popstate", go);
  go();

  // Tables: a head sorts by its column, then the other way round, then as it was.
  const UNITS = { "%": 1, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, s: 1, min: 60, h: 3600 };
  const SAID = { never: Infinity, infinite: Infinity, equal: 0 };
  function worth(text) {
    if (/^\d+ of \d+ seeds$/.test(text)) return Number.MAX_VALUE;  // not all get there: after those that do, before never
    const told = /^([+−-]?)((?:\d[\d,]*)?\.?\d+(?:e[+-]?\d+)?)(?:\/(\d+))?(?:\s*(%|B|kB|MB|GB|s|min|h)(?!\w))?/.exec(text);
    if (!told) return SAID[text] ?? NaN;
    return (told[1] && told[1] !== "+" ? -1 : 1) * Number(told[2].replaceAll(",", "")) / Number(told[3] ?? 1) * (UNITS[told[4]] ?? 1);
  }
  const words = new Intl.Collator("en", { numeric: true });
  function sorted(rows, k, figures, way) {  // cells that say nothing of the kind stay behind, whichever way
    const keyed = rows.map(row => ({ row, key: figures ? worth(row.cells[k].textContent) : row.cells[k].textContent }));
    const silent = ({ key }) => key === "" || Number.isNaN(key);
    const by = (a, b) => figures ? (a.key === b.key ? 0 : a.key - b.key) : words.compare(a.key, b.key);
    const told = keyed.filter(one => !silent(one)).sort((a, b) => way === "ascending" ? by(a, b) : by(b, a));
    return [...told, ...keyed.filter(silent)].map(one => one.row);
  }
  for (const table of document.querySelectorAll("main table")) {
    const body = table.tBodies[0], first = [...body.rows], heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, k) => {
      const text = head.textContent, figures = head.classList.contains("figure");
      const ways = figures ? ["descending", "ascending"] : ["ascending", "descending"];
      head.ariaSort = "none";
      head.replaceChildren(button(text, "", () => {
        const way = [...ways, "none"][ways.indexOf(head.ariaSort) + 1];
        for (const other of heads) other.ariaSort = other === head ? way : "none";
        body.append(...(way === "none" ? first : sorted(first, k, figures, way)));
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

  narrow.addEventListener("change", () => redraw([...drawn.keys()]));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  theme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => theme(dark.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => theme(root.dataset.theme === "dark" ? "light" : "dark"));

  for (const id of Object.keys(page.charts)) watcher.observe(document.getElementById(id));

  // For tests: everything that is neither hidden nor folded, now.
  window.drawEverything = () => redraw(Object.keys(page.charts).filter(id => !drawn.has(id) && !hidden(id))).then(() => drawn.size);
  let before, closed;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const folded of closed) folded.open = true;
    theme("light");
    window.drawEverything();
  });
  addEventListener("afterprint", () => {
    for (const folded of closed) folded.open = false;
    theme(before);
  });
})();
