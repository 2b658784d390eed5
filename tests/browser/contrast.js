// Texts whose contrast with what is behind them is too low (WCAG 2): from computed colours, and a cell's for figures in a matrix.
() => {
  const parse = text => {
    const probe = parse.canvas ??= document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = text;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data].map(v => v / 255);
  };
  const over = (front, back) => front.slice(0, 3).map((v, k) => v * front[3] + back[k] * (1 - front[3]));
  const luminance = colour => {
    const [r, g, b] = colour.map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (one, other) => {
    const [a, b] = [luminance(one), luminance(other)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const ground = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.unshift(parse(getComputedStyle(e).backgroundColor));
    return layers.reduce((back, front) => over(front, back), [1, 1, 1]);
  };
  const cell = text => {
    const box = text.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
    return [...text.closest("svg").querySelectorAll(".mark-rect.role-mark > path")].find(path => {
      const b = path.getBoundingClientRect();
      return b.left <= x && x <= b.right && b.top <= y && y <= b.bottom;
    });
  };
  const low = [];
  let texts = 0;
  const judge = (text, front, back) => {
    texts += 1;
    const found = ratio(over(front, back), back);
    if (found < 4.5) low.push([text.trim().slice(0, 40), found]);
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, e = node.parentElement;
    if (!node.data.trim() || e.closest("script, style, [hidden]") || !e.getClientRects().length) continue;
    const style = getComputedStyle(e);
    if (e instanceof SVGElement) {
      const behind = e.closest(".mark-text.role-mark") ? cell(e) : null, svg = e.closest(".chart");
      const front = parse(style.fill);
      front[3] *= Number(style.fillOpacity) * Number(style.opacity);
      if (front[3] === 0) continue;  // a label that would have overlapped another
      judge(node.data, front, behind ? over(parse(getComputedStyle(behind).fill), ground(svg)) : ground(svg));
    } else {
      judge(node.data, parse(style.color), ground(e));
    }
  }
  for (const symbol of document.querySelectorAll(".role-legend-symbol path")) {  // a picture: it must be seen, not read
    const style = getComputedStyle(symbol), colour = parse(style.fill === "none" || style.fill === "transparent" ? style.stroke : style.fill);
    if (colour[3] && ratio(colour.slice(0, 3), ground(symbol.closest(".chart"))) < 1.4) low.push([`symbol ${style.fill}`, 0]);
  }
  return { texts, low };
}
