
"use strict";
(() => {
  const samples = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const cells = [...document.querySelectorAll(".sheet > li")];
  const tiles = cells.map((cell) => cell.querySelector("button"));
  if (!tiles.length) return;
  const search = byId("search"), label = byId("label"), wrong = byId("wrong"), view = byId("view"), body = byId("view-body");
  let count = 0;
  const sheets = [...document.querySelectorAll(".sheet")].map((sheet) => [...sheet.children].map(() => count++)), more = byId("more");
  let shown = tiles.map((_, index) => index), current = 0, open = -1, all = false, searchTexts;

  const el = (name, text, kind) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };

  const setCurrent = (index, focus) => {
    tiles[current].tabIndex = -1;
    current = index;
    tiles[current].tabIndex = 0;
    if (focus) { tiles[current].focus({ preventScroll: true }); tiles[current].scrollIntoView({ block: "nearest" }); }
  };

  const searchText = (sample) => [sample.key, ...Object.values(sample.labels), ...sample.texts.map((text) => text.text), ...sample.meta.map(([, value]) => value)].join("\n").toLowerCase();

  const columnCount = () => getComputedStyle(cells[0].parentNode).gridTemplateColumns.split(" ").length;

  const applyFilters = () => {
    const words = search.value.trim().toLowerCase();
    const [set, value] = label && label.value ? JSON.parse(label.value) : ["", ""];
    const isUnfiltered = !words && !set && !(wrong && wrong.checked), columns = columnCount(), maxTiles = all || !isUnfiltered ? Infinity : Math.max(5, Math.ceil(16 / columns)) * columns;
    if (words && !searchTexts) searchTexts = samples.map(searchText);
    const matches = samples.map((sample, index) => (!words || searchTexts[index].includes(words)) && (!set || sample.labels[set] === value)
      && (!wrong || !wrong.checked || sample.problems.length > 0));
    shown = [];
    let hiddenCount = 0;
    for (const indexes of sheets) {  // show only a few rows of many samples, evenly spread over the dataset
      const matching = indexes.filter((index) => matches[index]), share = Math.min(1, maxTiles / matching.length);
      const visible = new Set(matching.filter((_, number) => Math.floor(number * share) > Math.floor((number - 1) * share)));
      for (const index of indexes) if (cells[index].hidden === visible.has(index)) cells[index].hidden = !visible.has(index);
      const unusual = indexes.length && cells[indexes[0]].closest(".unusual");
      if (unusual) unusual.hidden = !visible.size;
      shown.push(...visible);
      hiddenCount += matching.length - visible.size;
    }
    more.hidden = !hiddenCount;
    const visibleCount = shown.filter((index) => !samples[index].why).length, total = samples.filter((sample) => !sample.why).length;
    byId("count").textContent = `${visibleCount.toLocaleString("en")}${visibleCount === total ? "" : ` of ${total.toLocaleString("en")}`} shown`;
    byId("none").hidden = shown.length > 0;
    if (shown.length && !shown.includes(current)) setCurrent(shown[0], false);
  };

  const reveal = (index) => { if (cells[index].hidden) { all = true; search.value = ""; if (label) label.value = ""; if (wrong) wrong.checked = false; applyFilters(); } };

  const step = (from, key) => {
    const position = shown.indexOf(from), columns = key.endsWith("Up") || key.endsWith("Down") ? columnCount() : 1;
    const moves = { ArrowLeft: position - 1, ArrowRight: position + 1, ArrowUp: position - columns, ArrowDown: position + columns, Home: 0, End: shown.length - 1 };
    if (!(key in moves)) return -1;
    const to = moves[key];
    if (to >= 0 && to < shown.length) return shown[to];
    const rows = Math.floor(position / columns), last = Math.floor((shown.length - 1) / columns);
    return key === "ArrowDown" && rows < last ? shown[shown.length - 1] : from;
  };

  const section = (into, title, ...parts) => { into.append(el("h3", title), ...parts); };

  const facts = (rows) => {
    const list = el("dl", undefined, "facts");
    for (const [name, value] of rows) { list.append(el("dt", name), el("dd", value)); }
    return list;
  };

  const bytes = (count) => `${count.toLocaleString("en")} ${count === 1 ? "byte" : "bytes"}`;

  const picture = (src, image, kind) => {
    const img = el("img", undefined, kind);
    img.src = src;
    img.alt = `${image.field}: ${image.full[0]} by ${image.full[1]} pixels`;
    return img;
  };

  const figure = (image, ...shown) => {
    const element = el("figure"), stack = el("div", undefined, "stack");
    const small = image.size[0] !== image.full[0] || image.size[1] !== image.full[1];
    stack.append(...shown);
    element.append(stack, el("figcaption", `${image.field}: ${image.full[0].toLocaleString("en")} × ${image.full[1].toLocaleString("en")}, ${image.kind} ${image.mode}`
      + (small ? `; shown at ${image.size[0]} × ${image.size[1]}` : "")));
    if (!image.colours.length) return element;
    const legend = el("div", undefined, "legend");
    for (const [value, colour] of image.colours) {
      const entry = el("span"), swatch = el("i");
      swatch.style.background = value ? colour : "none";
      entry.append(swatch, String(value));
      legend.append(entry);
    }
    element.append(legend);
    return element;
  };

  const blend = (mask) => {
    const element = el("label", "mask opacity", "blend"), range = el("input");
    range.type = "range";
    range.value = 60;
    range.addEventListener("input", () => { mask.style.opacity = range.value / 100; });
    range.addEventListener("keydown", (event) => event.stopPropagation());
    element.append(range);
    return element;
  };

  const showSample = (index) => {
    const sample = samples[index], left = el("div", undefined, "images"), right = el("div");
    byId("view-key").textContent = sample.key;
    const [photo, over] = cells[index].querySelectorAll("img");
    sample.images.forEach((image, number) => {
      if (image.src) left.append(figure(image, picture(image.src, image, image.colours.length ? "mask" : "")));
      else if (number) left.append(figure(image, picture(over.src, image)));
      else left.append(figure(image, picture(photo.src, image)));
    });
    if (sample.over) {
      const mask = picture(over.src, sample.images[0], "mask");
      mask.alt = "";
      left.firstChild.firstChild.append(mask);
      left.firstChild.append(blend(mask));
    }
    const players = [...cells[index].querySelectorAll("audio, video")];
    for (const clip of sample.clips) {
      const element = el("figure");
      if (clip.size) element.append(players.shift().cloneNode());
      element.append(el("figcaption", `${clip.field}: ${clip.description}`));
      left.append(element);
    }
    for (const problem of sample.problems) right.append(el("p", problem, "alarm"));
    const labels = Object.entries(sample.labels);
    section(right, "Sample", facts([...labels, ["shard", sample.shard], ["offset", sample.offset.toLocaleString("en")], ["size", bytes(sample.size)]]));
    const link = el("a", "Link to this sample");
    link.href = "#" + sample.id;
    right.append(link);
    for (const note of sample.notes) right.append(el("p", note, "note"));
    const short = new Map(), isBrief = (text) => !text.cut && (text.kind === "text" || text.kind === "numbers") && text.text.length < 40 && !text.text.includes("\n");
    for (const text of sample.texts) {
      if (isBrief(text)) { short.set(text.field, text.text); continue; }
      const suffix = text.cut ? (text.kind === "bytes" ? ", first bytes" : ", start") : "";
      section(right, `${text.field}${text.kind === "text" || text.field.endsWith(text.kind) ? "" : ` (${text.kind})`}${suffix}`, el("pre", text.text));
    }
    if (sample.meta.length) section(right, "Metadata", facts(sample.meta));
    section(right, "Fields", facts(sample.fields.map(([name, length]) => [name, bytes(length) + (short.get(name) ? `: ${short.get(name)}` : "")])));
    body.replaceChildren(...(left.firstChild ? [left] : []), right);
    body.classList.toggle("plain", !left.firstChild);
    body.scrollTop = 0;
    const position = shown.indexOf(index);
    byId("view-back").disabled = position <= 0;
    byId("view-next").disabled = position >= shown.length - 1;
    open = index;
    history.replaceState(null, "", "#" + sample.id);
  };

  const move = (offset) => {
    const position = shown.indexOf(open) + offset;
    if (position >= 0 && position < shown.length) { showSample(shown[position]); setCurrent(shown[position], false); }
  };

  const openSample = (index) => { reveal(index); setCurrent(index, false); showSample(index); if (!view.open) view.showModal(); body.focus(); };

  const openFromHash = () => { const index = samples.findIndex((sample) => "#" + sample.id === location.hash); if (index >= 0 && index !== open) openSample(index); };

  tiles.forEach((tile, index) => {
    tile.tabIndex = index === 0 ? 0 : -1;
    tile.addEventListener("click", () => openSample(index));
    tile.addEventListener("focus", () => { if (index !== current) setCurrent(index, false); });
    tile.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const to = step(index, event.key);
      if (to >= 0) { event.preventDefault(); setCurrent(to, true); }
    });
  });
  byId("view-close").addEventListener("click", () => view.close());
  byId("view-back").addEventListener("click", () => move(-1));
  byId("view-next").addEventListener("click", () => move(1));
  view.addEventListener("click", (event) => { if (event.target === view) view.close(); });
  view.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") { event.preventDefault(); move(event.key === "ArrowLeft" ? -1 : 1); }
  });
  view.addEventListener("close", () => { body.replaceChildren(); if (open >= 0) setCurrent(open, true); open = -1; history.replaceState(null, "", location.pathname + location.search); });
  more.querySelector("button").addEventListener("click", () => { const next = cells.findIndex((cell) => cell.hidden); all = true; applyFilters(); setCurrent(next, true); });
  window.addEventListener("hashchange", openFromHash);
  for (const input of [search, label, wrong]) if (input) { input.addEventListener("input", applyFilters); input.addEventListener("change", applyFilters); }
  if (byId("masks")) byId("masks").addEventListener("change", () => document.body.classList.toggle("bare", !byId("masks").checked));
  search.addEventListener("keydown", (event) => { if (event.key === "Escape") { search.value = ""; applyFilters(); search.blur(); } });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.altKey || event.ctrlKey || event.metaKey || view.open || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    event.preventDefault();
    search.focus();
    search.select();
  });
  byId("tools").hidden = false;
  document.documentElement.classList.add("live");
  applyFilters();
  openFromHash();
})();
