// Texts of charts that lie on one another, are cut by the edge, or end in an ellipsis.
() => {
  const corners = text => {
    const box = text.getBBox(), m = text.getScreenCTM(), pad = 1;
    return [[box.x + pad, box.y + pad], [box.x + box.width - pad, box.y + pad], [box.x + box.width - pad, box.y + box.height - pad], [box.x + pad, box.y + box.height - pad]]
      .map(([x, y]) => [m.a * x + m.c * y + m.e, m.b * x + m.d * y + m.f]);
  };
  const apart = (one, other) => [one, other].some(shape => shape.some((from, k) => {  // some side has the other shape beyond it
    const to = shape[(k + 1) % 4], across = [to[1] - from[1], from[0] - to[0]];
    const along = points => points.map(p => p[0] * across[0] + p[1] * across[1]);
    const a = along(one), b = along(other);
    return Math.max(...a) <= Math.min(...b) || Math.max(...b) <= Math.min(...a);
  }));
  const wrong = [];
  let texts = 0;
  for (const chart of document.querySelectorAll(".chart")) {
    if (chart.closest("[hidden]")) continue;
    const edge = chart.querySelector("svg").getBoundingClientRect();
    const seen = [...chart.querySelectorAll("text")].filter(t => t.textContent.trim() && getComputedStyle(t).opacity !== "0" && !t.closest(".role-mark"));
    const shapes = seen.map(corners);
    texts += seen.length;
    seen.forEach((text, k) => {
      const said = text.textContent;
      if (said.endsWith("…")) wrong.push([chart.id, "cut short", said]);
      if (shapes[k].some(([x, y]) => x < edge.left - 1 || x > edge.right + 1 || y < edge.top - 1 || y > edge.bottom + 1)) wrong.push([chart.id, "beyond the edge", said]);
      for (let j = 0; j < k; j++) if (!apart(shapes[j], shapes[k])) wrong.push([chart.id, "on one another", seen[j].textContent + " / " + said]);
    });
  }
  return { texts, wrong };
}
