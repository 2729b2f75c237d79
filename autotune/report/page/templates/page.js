"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const reduced = { displayModeBar: false, responsive: true };
  const PAPER_PX = 690;
  const byId = (id) => document.getElementById(id);

  // colours are names such as "@accent"; the style sheet has their values
  const coloured = (value) => {
    if (Array.isArray(value)) return value.map(coloured);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, coloured(item)]));
    }
    if (typeof value !== "string" || !/^@[a-z]+$/.test(value)) return value;
    return getComputedStyle(document.documentElement).getPropertyValue(`--${value.slice(1)}`).trim() || value;
  };

  const places = [...document.querySelectorAll("[data-figure]")];
  const draw = (width) => Promise.all(places.map((place) => {
    const plot = coloured(data.figures[place.dataset.figure]);
    const small = place.clientWidth < 500;
    const layout = { ...plot.layout, height: Number(place.dataset.height) };
    if (width) Object.assign(layout, { width, height: 0.75 * layout.height, autosize: false });
    if (small) layout.font = { ...layout.font, size: 11 };
    if (place.dataset.figure === "front") plot.data.push(ring());
    return Plotly.react(place, plot.data, layout, reduced);
  }));

  // the selection: a ring in the figure, a row of the table, and the panel beside the figure
  let selected = null;
  const ring = () => {
    const trial = data.trials[selected] || {};
    const marker = coloured({ symbol: "circle-open", size: 24, color: "@text", line: { width: 2 } });
    const shown = trial.x !== null && trial.x !== undefined && trial.y !== null && trial.y !== undefined;
    return {
      type: "scatter", mode: "markers", x: shown ? [trial.x] : [], y: shown ? [trial.y] : [],
      marker, hoverinfo: "skip", showlegend: false,
    };
  };
  const front = byId("figure-front");
  const rows = [...document.querySelectorAll("#table tbody tr")];
  const pair = (name, text) => {
    const box = document.createElement("div");
    box.append(Object.assign(document.createElement("dt"), { textContent: name }));
    box.append(Object.assign(document.createElement("dd"), { textContent: text }));
    return box;
  };
  const select = (number, fromFigure) => {
    const trial = data.trials[number];
    if (!trial) return;
    selected = number;
    for (const row of rows) {
      const is = row.dataset.trial === String(number);
      row.classList.toggle("selected", is);
      row.setAttribute("aria-selected", is);
    }
    if (!front) return;
    byId("details-title").textContent = `${trial.title}: ${trial.state}`;
    byId("details-words").textContent = trial.words;
    byId("details-lines").replaceChildren(...trial.lines.map(([name, text]) => pair(name, text)));
    byId("details-configuration").textContent = trial.configuration;
    if (front.data) {
      const { x, y } = ring();
      Plotly.restyle(front, { x: [x], y: [y] }, [front.data.length - 1]);
    }
    if (!fromFigure) byId("details").scrollIntoView({ block: "nearest", behavior: "smooth" });
  };
  for (const row of rows) {
    row.addEventListener("click", () => select(row.dataset.trial, false));
    row.addEventListener("keydown", (event) => {
      if (event.key === "Enter") select(row.dataset.trial, false);
    });
  }

  // the filter of the table: words of the row, and its state
  const text = byId("filter-text");
  const state = byId("filter-state");
  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of rows) {
      const content = row.textContent.toLowerCase();
      const fits = words.every((word) => content.includes(word)) && (!state.value || row.dataset.state === state.value);
      row.hidden = !fits;
      count += fits;
    }
    byId("filter-count").textContent = `${count} of ${rows.length}`;
  };
  if (text) {
    byId("filter").addEventListener("submit", (event) => event.preventDefault());
    text.addEventListener("input", filter);
    state.addEventListener("change", filter);
  }

  const copy = byId("copy");
  if (copy) {
    copy.addEventListener("click", () => {
      const range = document.createRange();
      range.selectNodeContents(byId("code"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      // a page that was opened from a file may have no clipboard: the text is then selected
      if (!navigator.clipboard) return;
      navigator.clipboard.writeText(byId("code").textContent).then(() => { copy.textContent = "Copied"; }, () => {});
    });
  }

  if (data.selected !== null) selected = data.selected;
  draw().then(() => {
    if (front) {
      front.on("plotly_click", (event) => {
        const number = event.points[0].customdata;
        if (number !== undefined) select(number, true);
      });
    }
    if (selected !== null) select(selected, true);
    document.documentElement.dataset.drawn = "yes";
  });
  dark.addEventListener("change", () => draw());
  addEventListener("beforeprint", () => draw(PAPER_PX));
  addEventListener("afterprint", () => draw());
})();
