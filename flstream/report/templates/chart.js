// Values of a chart at the pointer, or by arrow keys. They are the numbers of its paths.
const tip = document.body.appendChild(document.createElement("div"));
tip.setAttribute("role", "status");
const nearest = (xs, x) => xs.reduce((best, it, at) => Math.abs(it - x) < Math.abs(xs[best] - x) ? at : best, 0);
for (const svg of document.querySelectorAll("svg.chart")) {
  const group = svg.querySelector("g"), {a: scale, e: left} = group.transform.baseVal[0].matrix;
  const {x: noun, xUnit, y: unit} = svg.dataset;
  const curves = [...group.querySelectorAll("[data-name]")].map(path => {
    const points = path.getAttribute("d").split(/[MLz]/).filter(Boolean).map(text => text.split(" "));
    const lows = path.matches(".area") ? points.splice(points.length / 2).reverse() : [];
    return {path, xs: points.map(([x]) => +x), texts: points.map(([, y], at) => lows[at] ? `${lows[at][1]} to ${y}` : y)};
  });
  const places = [...new Set(curves.flatMap(({xs}) => xs))].sort((a, b) => a - b);
  if (!places.length) continue;
  let now = -1;
  const hide = () => tip.className = "";
  const show = at => {
    now = Math.max(0, Math.min(at, places.length - 1));
    tip.replaceChildren(`${noun} ${places[now]} ${xUnit}`.trim());
    for (const {path: {style, dataset}, xs, texts} of curves) {
      const at = nearest(xs, places[now]);
      if (Math.abs(xs[at] - places[now]) * scale > 2) continue;  // of the 420 units of a chart's width
      const line = tip.appendChild(document.createElement("div"));
      line.innerHTML = "<i class=color></i>";
      line.firstChild.style.background = style.fill || style.stroke;
      line.append(`${dataset.name} ${texts[at]} ${unit}`);
    }
    tip.className = "tip";
    const box = svg.getBoundingClientRect(), x = box.left + (left + places[now] * scale) * box.width / 420;
    const side = x + 16 + tip.offsetWidth < innerWidth ? x + 12 : Math.max(4, x - 12 - tip.offsetWidth);
    Object.assign(tip.style, {left: `${scrollX + side}px`, top: `${scrollY + box.top}px`});
  };
  Object.assign(svg, {tabIndex: 0, onblur: hide});
  svg.onpointermove = svg.onpointerdown = event => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * 420 / box.width;
    show(nearest(places, (x - left) / scale));
  };
  svg.onpointerleave = event => event.pointerType === "mouse" && hide();
  svg.onkeydown = ({key}) => key === "Escape" ? hide() : /Arrow[LR]/.test(key) && show(now + (key === "ArrowLeft" ? -1 : 1));
}
