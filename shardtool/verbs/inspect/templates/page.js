(() => {
  const byId = (id) => document.getElementById(id);
  const samples = JSON.parse(byId("data").textContent), table = JSON.parse(byId("rows-data").textContent);
  const columns = table.columns.map((column) => new Column(column));
  const cells = [...document.querySelectorAll(".sheet > li")];
  const tiles = cells.map((cell) => cell.querySelector("button"));
  if (!tiles.length) return;
  const search = byId("search"), label = byId("label"), order = byId("order"), wrong = byId("wrong"), more = byId("more");
  const view = byId("view"), body = byId("view-body");
  const NO_MATCH = "No sample matches. Change the search or the filters.";
  const PAGE_ROWS = 50, MAX_LISTED_VALUES = 1000;
  let count = 0;
  const sheets = [...document.querySelectorAll(".sheet")].map((sheet) => [...sheet.children].map(() => count++));
  const cardOfRow = new Map(samples.map((sample, index) => [sample.row, index]).reverse());
  const picked = new Set(), filters = [];
  let shown = tiles.map((_, index) => index), matches = [], current = 0, open = null, cardTexts;
  let all = false, isTable = false, isDescending = false, firstRow = 0;

  const el = (name, text, kind) => {
    const element = document.createElement(name);
    if (text !== undefined) element.textContent = text;
    if (kind) element.className = kind;
    return element;
  };

  const button = (text, kind, action) => {
    const element = el("button", text, kind);
    element.type = "button";
    element.addEventListener("click", action);
    return element;
  };

  const makeOption = (value, text) => {
    const option = el("option", text);
    option.value = value;
    return option;
  };

  const whole = (number) => number.toLocaleString("en");
  const plural = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;
  const bytes = (number) => plural(number, "byte");
  const keyOf = (row) => table.keys[row] ?? columns[0].values[row];

  const setCurrent = (index, focus) => {
    tiles[current].tabIndex = -1;
    current = index;
    tiles[current].tabIndex = 0;
    if (focus) { tiles[current].focus({ preventScroll: true }); tiles[current].scrollIntoView({ block: "nearest" }); }
  };

  const columnCount = () => getComputedStyle(cells[0].parentNode).gridTemplateColumns.split(" ").length;

  // Returns for each row whether a value of the row or a text on its card contains the words.
  const searchRows = (words) => {
    const found = new Uint8Array(table.count);
    for (const contains of columns.map((column) => column.contains(words))) {
      for (let row = 0; row < table.count; row++) if (!found[row] && contains(row)) found[row] = 1;
    }
    cardTexts ??= samples.map((sample) => {
      const texts = sample.texts.map((text) => text.text), values = sample.meta.map(([, value]) => value);
      return [sample.key, ...Object.values(sample.labels), ...texts, ...values].join("\n").toLowerCase();
    });
    samples.forEach((sample, index) => { if (cardTexts[index].includes(words)) found[sample.row] = 1; });
    return found;
  };

  const hasProblem = (sample) => sample.problems.length > 0;

  const activeTests = () => {
    const tests = filters.map((filter) => filter.test()).filter(Boolean), words = search.value.trim().toLowerCase();
    if (label.value) {
      const [number, text] = JSON.parse(label.value), column = columns[number];
      tests.push(makeFilter(column, column.kind === "list" ? "has" : "is", text));
    }
    if (wrong && wrong.checked) {
      const rows = new Set(samples.filter(hasProblem).map((sample) => sample.row));
      tests.push((row) => rows.has(row));
    }
    if (words) {
      const found = searchRows(words);
      tests.push((row) => found[row] === 1);
    }
    return tests;
  };

  const update = () => {
    const tests = activeTests(), isUnfiltered = !tests.length;
    matches = [];
    for (let row = 0; row < table.count; row++) if (tests.every((test) => test(row))) matches.push(row);
    if (order.value) sortRows(matches, columns[order.value].ranks(table.count), isDescending);
    byId("direction").hidden = !order.value;
    byId("direction").textContent = isDescending ? "↓" : "↑";
    byId("direction").setAttribute("aria-label", isDescending ? "Sorted in descending order" : "Sorted in ascending order");
    firstRow = 0;
    showCards(isUnfiltered);
    if (isTable) showRows();
    const total = plural(table.count, "sample"), cards = shown.filter((index) => !samples[index].why).length;
    byId("count").textContent = (isUnfiltered ? total : `${whole(matches.length)} of ${total}`) + (isTable ? "" : `, ${plural(cards, "card")}`);
    updatePicks();
  };

  // Show the cards of the matching samples. Without a filter, show only some cards, evenly spread over the dataset.
  const showCards = (isUnfiltered) => {
    const positions = new Int32Array(table.count).fill(-1), columnsInRow = columnCount();
    matches.forEach((row, position) => { positions[row] = position; });
    const position = (index) => positions[samples[index].row];
    const maxTiles = all || !isUnfiltered || order.value ? Infinity : Math.max(5, Math.ceil(16 / columnsInRow)) * columnsInRow;
    let hiddenCount = 0;
    shown = [];
    for (const indexes of sheets) {
      const isShown = (index) => position(index) >= 0 && (!wrong || !wrong.checked || hasProblem(samples[index]));
      const matching = indexes.filter(isShown), share = Math.min(1, maxTiles / matching.length);
      if (order.value) matching.sort((one, other) => position(one) - position(other));
      const visible = new Set(matching.filter((_, number) => Math.floor(number * share) > Math.floor((number - 1) * share)));
      for (const index of indexes) if (cells[index].hidden === visible.has(index)) cells[index].hidden = !visible.has(index);
      if (indexes.length) arrange(cells[indexes[0]].parentNode, order.value ? [...visible] : indexes);
      const unusual = indexes.length && cells[indexes[0]].closest(".unusual");
      if (unusual) unusual.hidden = !visible.size;
      shown.push(...visible);
      hiddenCount += matching.length - visible.size;
    }
    more.hidden = !hiddenCount;
    byId("none").hidden = shown.length > 0;
    byId("none").textContent = matches.length
      ? `None of the ${plural(matches.length, "matching sample")} is shown as a card. Choose the table to list them.`
      : NO_MATCH;
    if (shown.length && !shown.includes(current)) setCurrent(shown[0], false);
  };

  const arrange = (sheet, indexes) => {
    const isArranged = indexes.every((index, position) => sheet.children[position] === cells[index]);
    if (!isArranged) sheet.prepend(...indexes.map((index) => cells[index]));
  };

  const tableHead = () => {
    const row = el("tr"), corner = el("th"), every = el("input");
    every.type = "checkbox";
    every.id = "pick-page";
    every.setAttribute("aria-label", "Select the rows of this page");
    every.addEventListener("change", () => { for (const row of pageRows()) setPicked(row, every.checked); updatePicks(); });
    corner.append(every);
    row.append(corner);
    columns.forEach((column, number) => {
      const head = el("th", undefined, column.kind === "number" ? "n" : ""), isSorted = order.value === String(number);
      head.scope = "col";
      if (isSorted) head.setAttribute("aria-sort", isDescending ? "descending" : "ascending");
      head.append(button(column.name + (isSorted ? (isDescending ? " ↓" : " ↑") : ""), "link", () => {
        isDescending = isSorted && !isDescending;
        order.value = String(number);
        update();
        byId("rows").tHead.rows[0].cells[number + 1].firstChild.focus();
      }));
      row.append(head);
    });
    const head = el("thead");
    head.append(row);
    return head;
  };

  const pageRows = () => matches.slice(firstRow, firstRow + PAGE_ROWS);

  const picker = (row) => {
    const input = el("input", undefined, "pick");
    input.type = "checkbox";
    input.dataset.row = row;
    input.setAttribute("aria-label", `Select ${columns[0].values[row]}`);
    input.addEventListener("change", () => { setPicked(row, input.checked); updatePicks(); });
    return input;
  };

  const showRows = () => {
    const tableBody = el("tbody");
    for (const row of pageRows()) {
      const line = el("tr"), pick = el("td"), head = el("th");
      pick.append(picker(row));
      head.scope = "row";
      head.append(button(columns[0].text(row), "link mono", () => openRow(row)));
      line.append(pick, head, ...columns.slice(1).map((column) => {
        const number = column.kind === "number" ? column.number(row) : null;
        const text = number === null ? column.text(row) : number.toLocaleString("en", { maximumSignificantDigits: 17 });
        const cell = el("td", text, column.kind === "number" ? "n" : "");
        cell.title = cell.textContent.length > 40 ? cell.textContent : "";
        return cell;
      }));
      tableBody.append(line);
    }
    byId("rows").replaceChildren(tableHead(), tableBody);
    const last = Math.min(firstRow + PAGE_ROWS, matches.length);
    byId("rows-shown").textContent = matches.length
      ? `${whole(firstRow + 1)} to ${whole(last)} of ${plural(matches.length, "row")}`
      : NO_MATCH;
    byId("rows-back").disabled = firstRow === 0;
    byId("rows-next").disabled = last >= matches.length;
  };

  const turnRows = (offset) => { firstRow += offset * PAGE_ROWS; showRows(); updatePicks(); byId("table").querySelector(".scroll").scrollTop = 0; };

  const setPicked = (row, isPicked) => (isPicked ? picked.add(row) : picked.delete(row));

  const updatePicks = () => {
    for (const input of document.querySelectorAll("input.pick")) input.checked = picked.has(Number(input.dataset.row));
    if (byId("pick-page")) byId("pick-page").checked = matches.length > 0 && pageRows().every((row) => picked.has(row));
    byId("picked").textContent = picked.size ? `${plural(picked.size, "sample")} selected` : "No sample selected";
    byId("pick-all").textContent = `Select all ${whole(matches.length)}`;
    byId("pick-all").disabled = !matches.length;
    byId("pick-none").disabled = !picked.size;
    byId("save").textContent = picked.size ? `Save keys of ${whole(picked.size)} selected` : `Save keys of all ${whole(matches.length)}`;
    byId("save").disabled = !picked.size && !matches.length;
    const isPicked = open !== null && picked.has(open.row);
    byId("view-pick").setAttribute("aria-pressed", isPicked);
    byId("view-pick").textContent = isPicked ? "Selected" : "Select";
  };

  const saveKeys = () => {
    const rows = (picked.size ? [...picked] : [...matches]).sort((one, other) => one - other), { text, excluded } = keyLines(rows.map(keyOf));
    const link = el("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
    link.download = table.file;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    const unsaved = excluded ? ` ${plural(excluded, "key")} with line breaks cannot be saved.` : "";
    const datasets = table.datasets > 1 ? new Set(rows.map((row) => columns[1].value(row))).size : 1;
    const mixed = datasets > 1 ? ` They are of ${datasets} datasets. To save the keys of only one, filter by dataset first.` : "";
    byId("picked").textContent = `${plural(rows.length - excluded, "key")} saved in ${table.file} for --keys-from.${mixed}${unsaved}`;
  };

  const fillLabels = () => {
    const groups = [];
    columns.forEach((column, number) => {
      const values = column.label ? column.counts(MAX_LISTED_VALUES) : undefined;
      if (!values || !values.size) return;
      const group = el("optgroup");
      group.label = column.name;
      for (const [text, rows] of values) {
        const shortened = text.length > 60 ? text.slice(0, 60) + "…" : text;
        group.append(makeOption(JSON.stringify([number, text]), `${shortened} (${whole(rows)})`));
      }
      groups.push(group);
    });
    label.replaceChildren(makeOption("", "all"), ...(groups.length === 1 ? groups[0].children : groups));
    byId("label-choice").hidden = !groups.length;
  };

  const fillOptions = (select, texts) => select.replaceChildren(...texts.map(([value, text]) => makeOption(value, text)));
  const columnOptions = columns.map((column, number) => [String(number), column.name]);

  const addFilter = (columnNumber) => {
    const line = el("li"), column = el("select"), operator = el("select"), value = el("input"), list = el("datalist"), number = count++;
    column.setAttribute("aria-label", "Column");
    operator.setAttribute("aria-label", "Condition");
    value.setAttribute("aria-label", "Value");
    value.type = "search";
    list.id = `values-${number}`;
    value.setAttribute("list", list.id);
    fillOptions(column, columnOptions);
    column.value = String(columnNumber);
    const changeColumn = () => {
      const chosen = columns[column.value], values = chosen.counts(200);
      fillOptions(operator, OPERATORS[chosen.kind].map((name) => [name, name]));
      list.replaceChildren(...[...(values || new Map()).keys()].map((text) => makeOption(text, "")));
    };
    const filter = { test: () => {
      const test = makeFilter(columns[column.value], operator.value, value.value);
      value.disabled = operator.value.endsWith("empty");
      value.setAttribute("aria-invalid", test === undefined);
      return test;
    } };
    column.addEventListener("change", () => { changeColumn(); update(); });
    operator.addEventListener("change", update);
    value.addEventListener("input", update);
    changeColumn();
    filters.push(filter);
    const remove = () => {
      filters.splice(filters.indexOf(filter), 1);
      line.remove();
      update();
      byId("add-filter").focus();
    };
    line.append(column, operator, value, list, button("Remove", "", remove));
    byId("filters").append(line);
    column.focus();
  };

  const reveal = (index) => {
    if (!cells[index].hidden) return;
    all = true;
    search.value = label.value = "";
    if (wrong) wrong.checked = false;
    filters.length = 0;
    byId("filters").replaceChildren();
    update();
  };

  const setView = (table) => {
    isTable = table;
    byId("table").hidden = !table;
    byId("cards").hidden = table;
    byId("as-table").setAttribute("aria-pressed", table);
    byId("as-cards").setAttribute("aria-pressed", !table);
    update();
  };

  const step = (from, key) => {
    const position = shown.indexOf(from), width = key.endsWith("Up") || key.endsWith("Down") ? columnCount() : 1;
    const moves = { ArrowLeft: position - 1, ArrowRight: position + 1, ArrowUp: position - width, ArrowDown: position + width, Home: 0, End: shown.length - 1 };
    if (!(key in moves)) return -1;
    const to = moves[key];
    if (to >= 0 && to < shown.length) return shown[to];
    const rows = Math.floor(position / width), last = Math.floor((shown.length - 1) / width);
    return key === "ArrowDown" && rows < last ? shown[shown.length - 1] : from;
  };

  const section = (into, title, ...parts) => { into.append(el("h3", title), ...parts); };

  const facts = (rows) => {
    const list = el("dl", undefined, "facts");
    for (const [name, value] of rows) { list.append(el("dt", name), el("dd", value)); }
    return list;
  };

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
    element.append(stack, el("figcaption", `${image.field}: ${whole(image.full[0])} × ${whole(image.full[1])}, ${image.kind} ${image.mode}`
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

  const ROLES = { human: "user", user: "user", gpt: "assistant", assistant: "assistant", model: "assistant", bot: "assistant", system: "system" };

  const chat = (turns) => {
    const list = el("ol", undefined, "chat");
    for (const [role, text] of turns) {
      const turn = el("li", undefined, ROLES[role.toLowerCase()] || "other");
      turn.append(el("b", role), el("p", text));
      list.append(turn);
    }
    return list;
  };

  const showMedia = (index, sample, left) => {
    const [photo, over] = cells[index].querySelectorAll("img"), outlines = cells[index].querySelector("svg.outlines"), wave = cells[index].querySelector("svg.wave");
    sample.images.forEach((image, number) => {
      if (image.src) left.append(figure(image, picture(image.src, image, image.colours.length ? "sharp" : "")));
      else left.append(figure(image, picture((number ? over : photo).src, image, image.colours.length ? "sharp" : "")));
    });
    if (sample.over) {
      const mask = picture(over.src, sample.images[0], "mask");
      mask.alt = "";
      left.firstChild.firstChild.append(mask);
      left.firstChild.append(blend(mask));
    }
    if (outlines) left.firstChild.firstChild.append(outlines.cloneNode(true));
    const players = [...cells[index].querySelectorAll("audio, video")];
    sample.clips.forEach((clip, number) => {
      const element = el("figure");
      if (wave && !number) element.append(wave.cloneNode(true));
      if (clip.size) element.append(players.shift().cloneNode());
      element.append(el("figcaption", `${clip.field}: ${clip.description}`));
      left.append(element);
    });
  };

  const showTexts = (sample, right) => {
    const short = new Map(), isBrief = (text) => !text.cut && (text.kind === "text" || text.kind === "numbers") && text.text.length < 40 && !text.text.includes("\n");
    for (const text of sample.texts) {
      if (isBrief(text)) { short.set(text.field, text.text); continue; }
      const suffix = text.cut ? (text.kind === "bytes" ? ", first bytes" : ", start") : "";
      const title = `${text.field}${text.kind === "text" || text.field.endsWith(text.kind) ? "" : ` (${text.kind})`}${suffix}`;
      section(right, title, text.turns.length ? chat(text.turns) : el("pre", text.text));
    }
    if (sample.meta.length) section(right, "Metadata", facts(sample.meta));
    section(right, "Fields", facts(sample.fields.map(([name, length]) => [name, bytes(length) + (short.get(name) ? `: ${short.get(name)}` : "")])));
  };

  const showSample = (index) => {
    const sample = samples[index], left = el("div", undefined, "images"), right = el("div");
    byId("view-key").textContent = sample.key;
    showMedia(index, sample, left);
    for (const problem of sample.problems) right.append(el("p", problem, "alarm"));
    section(right, "Sample", facts([...Object.entries(sample.labels), ["shard", sample.shard], ["offset", whole(sample.offset)], ["size", bytes(sample.size)]]));
    const link = el("a", "Link to this sample");
    link.href = "#" + sample.id;
    right.append(link);
    for (const note of sample.notes) right.append(el("p", note, "note"));
    showTexts(sample, right);
    body.replaceChildren(...(left.firstChild ? [left] : []), right);
    body.classList.toggle("plain", !left.firstChild);
    history.replaceState(null, "", "#" + sample.id);
  };

  const showValues = (row) => {
    byId("view-key").textContent = columns[0].text(row);
    const right = el("div");
    section(right, "Sample", facts(columns.slice(1).map((column) => [column.name, column.text(row)]).filter(([, text]) => text)));
    right.append(el("p", "This page does not contain the fields of this sample. Print them with `shardtool inspect DATASET --show KEY`.", "note"));
    body.replaceChildren(right);
    body.classList.add("plain");
  };

  // The order in which the arrow keys show samples in the detail view: that of the table or of the cards.
  const sequence = () => (isTable ? matches : shown);
  const positionInSequence = () => sequence().indexOf(isTable ? open.row : open.index);

  const show = (target) => {
    open = target;
    if (target.index >= 0) showSample(target.index); else showValues(target.row);
    body.scrollTop = 0;
    const position = positionInSequence();
    byId("view-back").disabled = position <= 0;
    byId("view-next").disabled = position < 0 || position >= sequence().length - 1;
    updatePicks();
    if (!view.open) view.showModal();
    body.focus();
  };

  const targetOfRow = (row) => ({ row, index: cardOfRow.get(row) ?? -1 });
  const openRow = (row) => show(targetOfRow(row));
  const openSample = (index) => { if (!isTable) { reveal(index); setCurrent(index, false); } show({ row: samples[index].row, index }); };

  const move = (offset) => {
    const to = sequence()[positionInSequence() + offset];
    if (to === undefined) return;
    if (isTable) { openRow(to); return; }
    setCurrent(to, false);
    show({ row: samples[to].row, index: to });
  };

  const closed = () => {
    body.replaceChildren();
    history.replaceState(null, "", location.pathname + location.search);
    if (open && isTable) {
      const position = matches.indexOf(open.row);
      if (position >= 0 && (position < firstRow || position >= firstRow + PAGE_ROWS)) {
        firstRow = Math.floor(position / PAGE_ROWS) * PAGE_ROWS;
        showRows();
        updatePicks();
      }
      const line = byId("rows").tBodies[0].rows[position - firstRow];
      if (line) line.querySelector("button").focus();
    } else if (open) setCurrent(open.index, true);
    open = null;
  };

  const openFromHash = () => {
    const index = samples.findIndex((sample) => "#" + sample.id === location.hash);
    if (index >= 0 && (!open || index !== open.index)) openSample(index);
  };

  tiles.forEach((tile, index) => {
    const pick = picker(samples[index].row);
    pick.tabIndex = -1;  // all cards together are one stop of the Tab key, and the key `x` selects a card
    cells[index].prepend(pick);
    tile.tabIndex = index === 0 ? 0 : -1;
    tile.setAttribute("aria-keyshortcuts", "x");
    tile.addEventListener("click", () => openSample(index));
    tile.addEventListener("focus", () => { if (index !== current) setCurrent(index, false); });
    tile.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey) return;
      if (event.key === "x") { const { row } = samples[index]; setPicked(row, !picked.has(row)); updatePicks(); return; }
      const to = step(index, event.key);
      if (to >= 0) { event.preventDefault(); setCurrent(to, true); }
    });
  });
  byId("view-close").addEventListener("click", () => view.close());
  byId("view-back").addEventListener("click", () => move(-1));
  byId("view-next").addEventListener("click", () => move(1));
  byId("view-pick").addEventListener("click", () => { setPicked(open.row, !picked.has(open.row)); updatePicks(); });
  view.addEventListener("click", (event) => { if (event.target === view) view.close(); });
  view.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("audio, video")) return;
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") { event.preventDefault(); move(event.key === "ArrowLeft" ? -1 : 1); }
  });
  view.addEventListener("close", closed);
  more.querySelector("button").addEventListener("click", () => { const next = cells.findIndex((cell) => cell.hidden); all = true; update(); setCurrent(next, true); });
  window.addEventListener("hashchange", openFromHash);
  search.addEventListener("input", update);
  for (const input of [label, order, wrong]) if (input) input.addEventListener("change", update);
  byId("direction").addEventListener("click", () => { isDescending = !isDescending; update(); });
  byId("add-filter").addEventListener("click", () => addFilter(Math.min(1, columns.length - 3)));
  for (const chart of document.querySelectorAll(".columns > li")) {
    const number = columns.findIndex((column) => column.name === chart.dataset.column);
    if (number > 0) chart.append(button("Filter", "link", () => { addFilter(number); byId("samples").scrollIntoView(); }));
  }
  byId("as-cards").addEventListener("click", () => setView(false));
  byId("as-table").addEventListener("click", () => setView(true));
  byId("rows-back").addEventListener("click", () => turnRows(-1));
  byId("rows-next").addEventListener("click", () => turnRows(1));
  byId("pick-all").addEventListener("click", () => { for (const row of matches) picked.add(row); updatePicks(); });
  byId("pick-none").addEventListener("click", () => { picked.clear(); updatePicks(); });
  byId("save").addEventListener("click", saveKeys);
  if (byId("overlays")) byId("overlays").addEventListener("change", () => document.body.classList.toggle("bare", !byId("overlays").checked));
  search.addEventListener("keydown", (event) => { if (event.key === "Escape") { search.value = ""; update(); search.blur(); } });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.altKey || event.ctrlKey || event.metaKey || view.open || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    event.preventDefault();
    search.focus();
    search.select();
  });
  fillLabels();
  fillOptions(order, [["", "dataset order"], ...columnOptions]);
  byId("tools").hidden = byId("picks").hidden = false;
  document.documentElement.classList.add("live");
  const hasMedia = samples.some((sample) => sample.images.length || sample.clips.length || sample.texts.some((text) => text.turns.length));
  setView(!hasMedia && table.metadata);
  openFromHash();
})();
