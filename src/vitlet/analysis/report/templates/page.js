"use strict";
(() => {
  const root = document.documentElement;
  const dark = () => root.dataset.theme === "dark" ||
    (!root.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
  document.getElementById("theme").addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; });

  // Sections: on a phone all but the first are folded; a link to one unfolds it, and paper has them all.
  const parts = [...document.querySelectorAll("details.part")];
  if (matchMedia("(max-width: 40rem)").matches) for (const part of parts.slice(1)) part.open = false;
  const reveal = (id) => {
    const part = document.getElementById(id)?.querySelector("details.part");
    if (part) part.open = true;
  };
  for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => reveal(link.hash.slice(1)));
  addEventListener("hashchange", () => reveal(location.hash.slice(1)));
  addEventListener("beforeprint", () => { for (const part of parts) part.open = true; });
  reveal(location.hash.slice(1));

  // What is too wide scrolls by itself, says so, and fades where it goes on.
  const look = (box) => {
    const rest = box.scrollWidth - box.clientWidth;
    box.classList.toggle("scrolls", rest > 1);
    box.classList.toggle("more", rest - box.scrollLeft > 1);
  };
  const resized = new ResizeObserver((entries) => { for (const entry of entries) look(entry.target); });
  for (const box of document.querySelectorAll(".wide")) {
    const hint = document.createElement("p");
    hint.className = "hint";
    hint.textContent = "Scroll sideways to see all of it →";
    box.before(hint);
    box.addEventListener("scroll", () => look(box), { passive: true });
    resized.observe(box);
  }

  // Pictures: a click, or Enter, shows one as large as the screen allows.
  const zoom = document.getElementById("zoom");
  zoom.addEventListener("click", () => zoom.close());
  for (const picture of document.querySelectorAll(".zoom")) {
    const enlarge = () => {
      const large = picture.cloneNode(true);
      large.classList.remove("zoom");
      for (const name of ["tabindex", "role"]) large.removeAttribute(name);
      const caption = picture.closest("figure").querySelector("figcaption");
      const words = document.createElement("div");
      words.append(...[...caption.childNodes].map((node) => node.cloneNode(true)));
      zoom.replaceChildren(large, words);
      zoom.showModal();
    };
    picture.tabIndex = 0;
    picture.setAttribute("role", "button");
    picture.addEventListener("click", enlarge);
    picture.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      enlarge();
    });
  }

  // Tables: a click on a head sorts by its column, another one the other way round; empty values stay last.
  const key = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.sort === undefined ? cell.textContent.trim() : cell.dataset.sort;
  };
  const compare = (a, b) => {
    const x = Number(a), y = Number(b);
    return a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y)
      ? x - y : a.localeCompare(b, undefined, { numeric: true });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => head.firstElementChild.addEventListener("click", () => {
      const number = head.classList.contains("number");
      const before = head.getAttribute("aria-sort");
      const down = before ? before === "ascending" : number;
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const x = key(a, column), y = key(b, column);
        if (x === "" || y === "") return (x === "") - (y === "");
        return down ? compare(y, x) : compare(x, y);
      });
      table.tBodies[0].append(...rows);
    }));
  }

  // Charts: the values under the pointer.
  const [left, right, width] = [48, 12, 400];
  for (const chart of document.querySelectorAll("svg[data-chart]")) {
    const data = JSON.parse(chart.dataset.chart);
    const readout = document.createElement("p");
    readout.className = "readout";
    chart.parentElement.append(readout);
    const cursor = chart.querySelector(".cursor");
    const show = (event) => {
      const box = chart.getBoundingClientRect();
      const place = ((event.clientX - box.left) / box.width * width - left) / (width - left - right);
      const wanted = data.low + place * (data.high - data.low);
      const near = (points) => points.reduce((a, b) => Math.abs(b[0] - wanted) < Math.abs(a[0] - wanted) ? b : a);
      const x = near(data.series.flatMap((series) => series.points))[0];
      const at = left + (x - data.low) / (data.high - data.low) * (width - left - right);
      cursor.setAttribute("x1", at);
      cursor.setAttribute("x2", at);
      const values = data.series.map((series) => [series.name, series.points.find((point) => point[0] === x)])
        .filter((pair) => pair[1]);
      readout.textContent = `${data.label} ${x}: ` +
        values.map(([name, point]) => (data.series.length > 1 ? `${name} ` : "") + Number(point[1].toPrecision(4))).join(", ");
    };
    chart.addEventListener("pointermove", show);
    chart.addEventListener("pointerdown", show);
    chart.addEventListener("pointerleave", () => { cursor.setAttribute("x1", -9); cursor.setAttribute("x2", -9); readout.textContent = ""; });
  }
})();
