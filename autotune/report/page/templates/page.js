"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);

  // the selection: marks of the figures, a row of the table, and the panel beside the front
  const rows = [...document.querySelectorAll("#table tbody tr")];
  const marks = [...document.querySelectorAll("use[data-trial]")];
  const pair = (name, text) => {
    const box = document.createElement("div");
    box.append(Object.assign(document.createElement("dt"), { textContent: name }));
    box.append(Object.assign(document.createElement("dd"), { textContent: text }));
    return box;
  };
  const select = (number, fromFigure) => {
    const trial = data.trials[number];
    const row = rows.find((each) => each.dataset.trial === String(number));
    if (!trial || !row) return;
    for (const place of [...rows, ...marks]) {
      place.classList.toggle("selected", place.dataset.trial === String(number));
    }
    if (!byId("details")) return;
    byId("details-title").textContent = `Trial ${number}: ${row.querySelector(".state").textContent}`;
    byId("details-words").textContent = row.querySelector(".clamp").textContent;
    byId("details-lines").replaceChildren(...trial.lines.map(([name, text]) => pair(name, text)));
    byId("details-configuration").textContent = trial.configuration;
    if (!fromFigure) byId("details").scrollIntoView({ block: "nearest", behavior: "smooth" });
  };
  for (const mark of marks) mark.addEventListener("click", () => select(mark.dataset.trial, true));
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

  if (data.selected !== null) select(data.selected, true);
})();
