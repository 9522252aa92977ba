
"use strict";
(() => {
  const samples = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const cells = [...document.querySelectorAll(".sheet > li")];
  const tiles = cells.map((cell) => cell.querySelector("button"));
  if (!tiles.length) return;
  const search = by("search"), label = by("label"), wrong = by("wrong"), view = by("view"), body = by("view-body");
  let count = 0;
  const sheets = [...document.querySelectorAll(".sheet")].map((sheet) => [...sheet.children].map(() => count++)), more = by("more");
  let shown = tiles.map((_, at) => at), here = 0, open = -1, all = false, words_of;

  const el = (name, text, kind) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };

  const stand = (at, focus) => {
    tiles[here].tabIndex = -1;
    here = at;
    tiles[here].tabIndex = 0;
    if (focus) { tiles[here].focus({ preventScroll: true }); tiles[here].scrollIntoView({ block: "nearest" }); }
  };

  const words_in = (one) => [one.key, ...Object.values(one.labels), ...one.texts.map((text) => text.text), ...one.meta.map(([, value]) => value)].join("\n").toLowerCase();

  const wide = () => getComputedStyle(cells[0].parentNode).gridTemplateColumns.split(" ").length;

  const choose = () => {
    const words = search.value.trim().toLowerCase();
    const [set, value] = label && label.value ? JSON.parse(label.value) : ["", ""];
    const free = !words && !set && !(wrong && wrong.checked), across = wide(), most = all || !free ? Infinity : Math.max(5, Math.ceil(16 / across)) * across;
    if (words && !words_of) words_of = samples.map(words_in);
    const fits = samples.map((one, at) => (!words || words_of[at].includes(words)) && (!set || one.labels[set] === value)
      && (!wrong || !wrong.checked || one.problems.length > 0));
    shown = [];
    let folded = 0;
    for (const places of sheets) {  // of many, as many as a few rows hold, from all over the dataset
      const found = places.filter((at) => fits[at]), part = Math.min(1, most / found.length);
      const seen = new Set(found.filter((_, number) => Math.floor(number * part) > Math.floor((number - 1) * part)));
      for (const at of places) if (cells[at].hidden === seen.has(at)) cells[at].hidden = !seen.has(at);
      const strange = places.length && cells[places[0]].closest(".strange");
      if (strange) strange.hidden = !seen.size;
      shown.push(...seen);
      folded += found.length - seen.size;
    }
    more.hidden = !folded;
    const usual = shown.filter((at) => !samples[at].why).length, every = samples.filter((one) => !one.why).length;
    by("count").textContent = `${usual.toLocaleString("en")}${usual === every ? "" : ` of ${every.toLocaleString("en")}`} shown`;
    by("none").hidden = shown.length > 0;
    if (shown.length && !shown.includes(here)) stand(shown[0], false);
  };

  const unfold = (at) => { if (cells[at].hidden) { all = true; search.value = ""; if (label) label.value = ""; if (wrong) wrong.checked = false; choose(); } };

  const step = (from, key) => {
    const place = shown.indexOf(from), across = key.endsWith("Up") || key.endsWith("Down") ? wide() : 1;
    const moves = { ArrowLeft: place - 1, ArrowRight: place + 1, ArrowUp: place - across, ArrowDown: place + across, Home: 0, End: shown.length - 1 };
    if (!(key in moves)) return -1;
    const to = moves[key];
    if (to >= 0 && to < shown.length) return shown[to];
    const rows = Math.floor(place / across), last = Math.floor((shown.length - 1) / across);
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
    const made = el("figure"), stack = el("div", undefined, "stack");
    const small = image.size[0] !== image.full[0] || image.size[1] !== image.full[1];
    stack.append(...shown);
    made.append(stack, el("figcaption", `${image.field}: ${image.full[0].toLocaleString("en")} × ${image.full[1].toLocaleString("en")}, ${image.kind} ${image.mode}`
      + (small ? `; shown from ${image.size[0]} × ${image.size[1]}` : "")));
    if (!image.colours.length) return made;
    const legend = el("div", undefined, "legend");
    for (const [value, colour] of image.colours) {
      const one = el("span"), swatch = el("i");
      swatch.style.background = value ? colour : "none";
      one.append(swatch, String(value));
      legend.append(one);
    }
    made.append(legend);
    return made;
  };

  const blend = (mask) => {
    const made = el("label", "mask", "blend"), range = el("input");
    range.type = "range";
    range.value = 60;
    range.addEventListener("input", () => { mask.style.opacity = range.value / 100; });
    range.addEventListener("keydown", (event) => event.stopPropagation());
    made.append(range);
    return made;
  };

  const fill = (at) => {
    const one = samples[at], left = el("div", undefined, "images"), right = el("div");
    by("view-key").textContent = one.key;
    const [photo, over] = cells[at].querySelectorAll("img");
    one.images.forEach((image, number) => {
      if (image.src) left.append(figure(image, picture(image.src, image, image.colours.length ? "mask" : "")));
      else if (number) left.append(figure(image, picture(over.src, image)));
      else left.append(figure(image, picture(photo.src, image)));
    });
    if (one.over) {
      const mask = picture(over.src, one.images[0], "mask");
      mask.alt = "";
      left.firstChild.firstChild.append(mask);
      left.firstChild.append(blend(mask));
    }
    const players = [...cells[at].querySelectorAll("audio, video")];
    for (const player of one.players) {
      const made = el("figure");
      if (player.size) made.append(players.shift().cloneNode());
      made.append(el("figcaption", `${player.field}: ${player.said}`));
      left.append(made);
    }
    for (const problem of one.problems) right.append(el("p", problem, "alarm"));
    const labels = Object.entries(one.labels);
    section(right, "Sample", facts([...labels, ["shard", one.shard], ["offset", one.offset.toLocaleString("en")], ["size", bytes(one.size)]]));
    const link = el("a", "Link to this sample");
    link.href = "#" + one.id;
    right.append(link);
    for (const note of one.notes) right.append(el("p", note, "note"));
    const short = new Map(), brief = (text) => !text.cut && (text.kind === "text" || text.kind === "numbers") && text.text.length < 40 && !text.text.includes("\n");
    for (const text of one.texts) {
      if (brief(text)) { short.set(text.field, text.text); continue; }
      const more = text.cut ? (text.kind === "bytes" ? ", first bytes" : ", the start of it") : "";
      section(right, `${text.field}${text.kind === "text" || text.field.endsWith(text.kind) ? "" : ` (${text.kind})`}${more}`, el("pre", text.text));
    }
    if (one.meta.length) section(right, "Metadata", facts(one.meta));
    section(right, "Fields", facts(one.fields.map(([name, length]) => [name, bytes(length) + (short.get(name) ? `: ${short.get(name)}` : "")])));
    body.replaceChildren(...(left.firstChild ? [left] : []), right);
    body.classList.toggle("plain", !left.firstChild);
    body.scrollTop = 0;
    const place = shown.indexOf(at);
    by("view-back").disabled = place <= 0;
    by("view-next").disabled = place >= shown.length - 1;
    open = at;
    history.replaceState(null, "", "#" + one.id);
  };

  const move = (by_) => {
    const place = shown.indexOf(open) + by_;
    if (place >= 0 && place < shown.length) { fill(shown[place]); stand(shown[place], false); }
  };

  const look = (at) => { unfold(at); stand(at, false); fill(at); if (!view.open) view.showModal(); body.focus(); };

  const follow = () => { const at = samples.findIndex((one) => "#" + one.id === location.hash); if (at >= 0 && at !== open) look(at); };

  tiles.forEach((tile, at) => {
    tile.tabIndex = at === 0 ? 0 : -1;
    tile.addEventListener("click", () => look(at));
    tile.addEventListener("focus", () => { if (at !== here) stand(at, false); });
    tile.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      const to = step(at, event.key);
      if (to >= 0) { event.preventDefault(); stand(to, true); }
    });
  });
  by("view-close").addEventListener("click", () => view.close());
  by("view-back").addEventListener("click", () => move(-1));
  by("view-next").addEventListener("click", () => move(1));
  view.addEventListener("click", (event) => { if (event.target === view) view.close(); });
  view.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") { event.preventDefault(); move(event.key === "ArrowLeft" ? -1 : 1); }
  });
  view.addEventListener("close", () => { body.replaceChildren(); if (open >= 0) stand(open, true); open = -1; history.replaceState(null, "", location.pathname + location.search); });
  more.querySelector("button").addEventListener("click", () => { const next = cells.findIndex((cell) => cell.hidden); all = true; choose(); stand(next, true); });
  window.addEventListener("hashchange", follow);
  for (const one of [search, label, wrong]) if (one) { one.addEventListener("input", choose); one.addEventListener("change", choose); }
  if (by("masks")) by("masks").addEventListener("change", () => document.body.classList.toggle("bare", !by("masks").checked));
  search.addEventListener("keydown", (event) => { if (event.key === "Escape") { search.value = ""; choose(); search.blur(); } });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.altKey || event.ctrlKey || event.metaKey || view.open || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    event.preventDefault();
    search.focus();
    search.select();
  });
  by("tools").hidden = false;
  document.documentElement.classList.add("live");
  choose();
  follow();
})();
