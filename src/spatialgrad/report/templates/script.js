"use strict";
(() => {
  // Tables: every column header becomes a button: ascending, descending, and back to the study's order.
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    const value = cell.dataset.sort;
    if (value === undefined) return cell.closest("table").classList.contains("runs") ? cell.textContent : null;
    return value !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
  };
  const compare = (a, b) => {
    if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
    return typeof a === "number" ? -1 : 1;
  };
  for (const table of document.querySelectorAll("table.data")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = now === "none" ? "ascending" : now === "ascending" ? "descending" : "none";
        heads.forEach((other) => other.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", next);
        table.classList.toggle("sorted", next !== "none");
        const sign = next === "descending" ? -1 : 1;
        const rows = [...original];
        if (next !== "none") {
          rows.sort((a, b) => {
            const x = keyOf(a, column), y = keyOf(b, column);
            if (x === null || y === null) return (x === null) - (y === null);
            return sign * compare(x, y);
          });
        }
        body.append(...rows);
      });
    });
  }

  // Scalings: choose a run, an update and a layer.
  const mix = (a, b, share) => a.map((x, index) => Math.round(x + (b[index] - x) * share));
  const LOW = [33, 102, 172], MIDDLE = [247, 247, 247], HIGH = [178, 24, 43];
  const shade = (value, largest) =>
    value <= 1 ? mix(LOW, MIDDLE, Math.max(0, value)) : mix(MIDDLE, HIGH, Math.min(1, (value - 1) / (largest - 1)));
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };
  const paint = (map, G, largest, values) => {
    map.style.gridTemplateColumns = `repeat(${G[0].length}, 1fr)`;
    map.classList.toggle("many", G[0].length > 5);
    map.replaceChildren(...G.flat().map((value) => {
      const cell = element("i"), rgb = shade(value, largest);
      cell.style.background = `rgb(${rgb})`;
      cell.style.color = luminance(rgb) > 0.179 ? "#000" : "#fff";
      if (values) cell.textContent = value.toFixed(2);
      return cell;
    }));
  };
  for (const explorer of document.querySelectorAll(".explorer")) {
    const data = JSON.parse(explorer.querySelector("script").textContent);
    // Not Math.max(...values): a call cannot take a hundred thousand arguments.
    const largest = data.runs.flatMap((run) => run.G.flat(3)).reduce((most, value) => Math.max(most, value), 1.5);
    const runs = element("select", { class: "run" });
    data.runs.forEach((run, index) => runs.append(element("option", { value: index }, `${run.arm}, seed ${run.seed}`)));
    const slider = element("input", { type: "range", min: 0, step: 1, class: "update" });
    const depth = element("div", { class: "depth" });
    const large = element("div", { class: "large", role: "img" }, element("div", { class: "map" }));
    const status = element("output", { "aria-live": "polite" });
    const more = data.left ? ` (${data.left} more runs are not on this page)` : "";
    explorer.append(
      element("div", { class: "controls" },
        element("label", { class: "field" }, `Run${more}`, runs),
        element("label", { class: "field grow" }, "Update", slider)),
      element("div", { class: "views" },
        element("div", {}, large, status),
        element("fieldset", {}, element("legend", {}, "Layer, from first to last"), depth)));
    const chosen = () => data.runs[Number(runs.value)];
    const show = () => {
      const run = chosen(), update = Number(slider.value);
      const radios = [...depth.querySelectorAll("input")];
      const layer = Math.max(0, radios.findIndex((radio) => radio.checked));
      const G = run.G[update];
      slider.setAttribute("aria-valuetext", `after epoch ${run.epochs[update]}`);
      radios.forEach((radio, index) => {
        const map = radio.parentElement.querySelector(".map");
        if (G[index]) paint(map, G[index], largest, false); else map.replaceChildren();
      });
      const own = G[layer];
      const map = large.firstElementChild;
      if (!own) {
        map.replaceChildren();
        status.textContent = `${run.layers[layer]}: not measured at this update`;
        large.setAttribute("aria-label", status.textContent);
        return;
      }
      paint(map, own, largest, true);
      map.style.aspectRatio = `${own[0].length} / ${own.length}`;
      const centre = own[own.length >> 1][own[0].length >> 1];
      status.textContent = `${run.layers[layer]}, update ${update + 1} of ${run.epochs.length}` +
        (run.updates > run.epochs.length ? ` shown (${run.updates} in total)` : "") +
        `, after epoch ${run.epochs[update]}: centre ${centre.toFixed(2)}, corner ${own[0][0].toFixed(2)}`;
      large.setAttribute("aria-label", `${status.textContent}. Rows: ${own.map((row) => row.join(", ")).join("; ")}`);
    };
    const rebuild = () => {
      const run = chosen();
      slider.max = run.epochs.length - 1;
      slider.value = run.epochs.length - 1;
      slider.disabled = run.epochs.length < 2;
      depth.replaceChildren(...run.layers.map((name, index) => {
        const radio = element("input", { type: "radio", name: `${data.id}-layer`, value: index });
        radio.checked = index === 0;
        // Long names break at dots.
        const parts = name.split(/(?<=\.)/).flatMap((part) => [element("wbr"), part]);
        const map = element("span", { class: "map", "aria-hidden": "true" });
        return element("label", {}, radio, map, element("span", {}, ...parts));
      }));
      show();
    };
    runs.addEventListener("change", rebuild);
    slider.addEventListener("input", show);
    depth.addEventListener("change", show);
    explorer.hidden = false;
    rebuild();
  }
})();
