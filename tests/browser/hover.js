// Rests a pointer on every mark of a chart, as a person's would reach it, and tells what the tooltip says of it.
id => {
  const chart = document.getElementById(id), tooltip = () => document.getElementById("vg-tooltip-element");
  chart.scrollIntoView({ block: "center", behavior: "instant" });
  const middle = shape => {  // a point on it: half way along a line, the centre of anything else
    if (shape.tagName === "path" && shape.closest(".mark-line, .mark-area")) {
      const half = shape.getPointAtLength(shape.getTotalLength() / 2).matrixTransform(shape.getScreenCTM());
      return [half.x, half.y];
    }
    const box = shape.getBoundingClientRect();
    const places = [0.5, 0.49, 0.48, 0.47].map(part => [box.x + box.width * part, box.y + box.height / 2]);  // a dashed line has gaps
    return places.find(([x, y]) => document.elementFromPoint(x, y) === shape) ?? places[0];
  };
  const plain = row => Object.fromEntries(Object.entries(row ?? {}).filter(([, value]) => value === null || typeof value !== "object"));
  const found = [];
  for (const shape of chart.querySelectorAll(".role-mark > path, .role-mark > line, .role-mark > text, .role-mark > rect")) {
    if (shape.closest(".mark-group.role-mark > *") === shape || !shape.getBoundingClientRect().width && !shape.getBoundingClientRect().height) continue;
    const [x, y] = middle(shape), there = document.elementFromPoint(x, y);
    if (!there || !chart.contains(there)) { found.push({ reached: false }); continue; }
    for (const kind of ["pointerover", "pointermove", "mousemove"]) {
      there.dispatchEvent(new (kind === "mousemove" ? MouseEvent : PointerEvent)(kind, { clientX: x, clientY: y, bubbles: true, view: window }));
    }
    const item = there.__data__, mark = (Array.isArray(item) ? item[0] : item)?.mark;
    const shown = tooltip()?.classList.contains("visible");
    found.push({
      reached: true,
      kind: /mark-(\w+)/.exec(shape.parentElement.getAttribute("class"))[1],
      text: shown ? tooltip().innerText : "",
      lines: shown ? [...tooltip().querySelectorAll("tr")].map(tr => [...tr.cells].map(cell => cell.innerText.replace(/:$/, "").trim())) : [],
      data: (mark?.marktype === "line" || mark?.marktype === "area" ? mark.items.filter(one => one) : [item]).map(one => plain(one?.datum)),
    });
    there.dispatchEvent(new PointerEvent("pointerout", { clientX: x, clientY: y, bubbles: true, view: window, relatedTarget: document.body }));
    there.dispatchEvent(new MouseEvent("mouseout", { clientX: x, clientY: y, bubbles: true, view: window, relatedTarget: document.body }));
  }
  return found;
}
